"""A Hive Metastore with a database of its own in a folder, from the jars of `make metastore`."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

__all__ = ["HOME", "RealMetastore"]

HOME = Path(__file__).parents[2] / ".venv-metastore"
_START_S = 120
_OPENS = ("java.lang", "java.net", "java.util", "java.util.concurrent", "java.nio")
_PROPERTIES = {
    "metastore.thrift.bind.host": "127.0.0.1",
    "javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName={folder}/derby;create=true",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "metastore.schema.verification": "false",
    "metastore.warehouse.dir": "{folder}/warehouse",
    "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
    "metastore.expression.proxy": (
        "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy"
    ),
}


class RealMetastore:
    """A process that answers on a port of this machine, ended by its id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def start(self) -> str:
        """Its address, once it answers."""
        java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
        opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENS]
        path = f"{self._conf()}:{HOME}/jars/*"
        main = "org.apache.hadoop.hive.metastore.HiveMetaStore"
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [java, *opens, "-Xmx512m", "-cp", path, main, "-p", str(self._port)],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
        self._wait()
        return f"thrift://127.0.0.1:{self._port}"

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _conf(self) -> Path:
        values = {name: value.format(folder=self._folder) for name, value in _PROPERTIES.items()}
        lines = [
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in values.items()
        ]
        conf = self._folder / "conf"
        conf.mkdir()
        text = f"<configuration>{''.join(lines)}</configuration>"
        (conf / "metastore-site.xml").write_text(text)
        return conf

    def _wait(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self._process.poll() is None:
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.2)
        self._process.kill()
        raise RuntimeError((self._folder / "log").read_text()[-4000:])
