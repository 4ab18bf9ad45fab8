"""Features of Paimon 2.0 in tables that Java makes now, and the list of its options."""

from __future__ import annotations

from pathlib import Path

import pytest
from feature_tables import RELEASE, make
from java_judge import JavaPaimon

import keytide as kt
from feature_cases import FEATURE_TABLES, as_json
from feature_checks import assert_read_right_or_refused
from keytide.options import option_of
from keytide.options.features import feature_of, is_harmless

OPTIONS = Path(__file__).parents[1] / "data" / "paimon-2.0.0-options.tsv"


@pytest.fixture
def newest(java: JavaPaimon) -> JavaPaimon:
    if java.name != RELEASE:
        pytest.skip("the features are those of the newest release")
    return java


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FEATURE_TABLES)
def test_interop_feature_is_read_right_or_refused_by_name(
    newest: JavaPaimon, lake: kt.Lake, name: str
) -> None:
    case = FEATURE_TABLES[name]
    expected = as_json(make(newest, name, case))
    assert_read_right_or_refused(lake, name, case, expected)
    assert as_json(newest.read(name)) == expected


def test_interop_list_of_options_is_that_of_java(newest: JavaPaimon) -> None:
    owner = newest.gateway.jvm.java.lang.Class.forName("org.apache.paimon.CoreOptions")
    option = newest.gateway.jvm.java.lang.Class.forName("org.apache.paimon.options.ConfigOption")
    found, other = set(), set()
    for member in owner.getDeclaredFields():
        if option.isAssignableFrom(member.getType()):
            member.setAccessible(True)
            value = member.get(None)
            found.add(value.key())
            other |= {each.getKey() for each in value.fallbackKeys()}
    assert found == {line.split("\t")[0] for line in OPTIONS.read_text().splitlines()}
    unknown = [k for k in found | other if not (option_of(k) or feature_of(k) or is_harmless(k))]
    assert unknown == []
