"""The request for a feed of topics, checked before any broker is contacted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keytide.errors import InvalidError
from keytide.feeds.kafka.address import KafkaAddress
from keytide.feeds.kafka.beginning import IfLost, Start, checked_if_lost
from keytide.feeds.request import FeedRequest

__all__ = ["BATCH_MESSAGES_MAX", "KafkaRequest", "TopicOptions"]

BATCH_MESSAGES_MAX = 100_000
"""Default for the maximum number of messages in a batch."""


@dataclass(frozen=True)
class TopicOptions:
    """Options for feeds of topics that feeds of files do not have. None means not given."""

    starting_offsets: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    messages_max: int | None = None
    if_lost: str | None = None

    def check_unused(self, source: str) -> None:
        """Raises `InvalidError` for an option that a feed of files does not use."""
        given = {
            "starting offsets": self.starting_offsets,
            "consumer properties": self.properties or None,
            "a number of messages per batch": self.messages_max,
            "what to do if offsets are lost": self.if_lost,
        }
        for what, value in given.items():
            if value is not None:
                raise InvalidError(
                    f"{what} ({value!r}) are only for topics, and {source!r} is not a topic; "
                    "remove them, or use kafka://host:port/topic"
                )


@dataclass(frozen=True)
class KafkaRequest:
    """The feed, and where it begins in which topics.

    `properties` are those of the client. `if_lost` says what to do about lost messages.
    """

    feed: FeedRequest
    address: KafkaAddress
    start: Start = field(default_factory=Start)
    properties: Mapping[str, str] = field(default_factory=dict)
    messages_max: int = BATCH_MESSAGES_MAX
    if_lost: IfLost = "fail"

    @classmethod
    def of(cls, feed: FeedRequest, options: TopicOptions) -> KafkaRequest:
        """Parse the request. Raises `InvalidError` for an invalid one, or one for files."""
        if feed.checkpoint is not None:
            raise InvalidError(
                f"a checkpoint ({feed.checkpoint}) is only for files, because Kafka offsets are "
                "stored in the table; remove it"
            )
        if feed.max_files_per_batch is not None:
            raise InvalidError(
                f"a number of files per batch ({feed.max_files_per_batch}) is only for files; "
                "set the number of messages per batch instead"
            )
        limit = BATCH_MESSAGES_MAX if options.messages_max is None else options.messages_max
        if limit < 1:
            raise InvalidError(f"{limit} messages per batch; expected 1 or more")
        return cls(
            feed,
            KafkaAddress.parse(feed.source),
            Start.parse(options.starting_offsets or "earliest"),
            dict(options.properties),
            limit,
            checked_if_lost(options.if_lost or "fail"),
        )
