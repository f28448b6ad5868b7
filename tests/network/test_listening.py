"""Sites that listen and never connect: the same model, the same outbox, for the coordinator
alone."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from consortium.coordinator.lines import _shown
from consortium.crypto.authority import Authority
from consortium.crypto.keyfile import read_secret
from consortium.drive.clock import SystemClock
from consortium.testing.processes import Network, ProcessesError, Shape, free_port, run, wait_until

NOWHERE = "https://127.0.0.1:1"  # whoever connects outward gets nowhere


@dataclass
class Called(Network):
    """A network in which some sites listen. Where they could connect to is taken from them."""

    listening: dict[str, int] = field(default_factory=dict)
    is_approved: bool = True

    def join(self, name: str) -> None:
        if name not in self.listening:
            super().join(name)
            return
        url = f"https://127.0.0.1:{self.listening[name]}"
        token = json.loads(self.ask("invite", name, "--listens", url))["data"]["token"]
        (self.folder / f"{name}.txt").write_text(name.partition("-")[2])
        words = ["join", token, "--data", f"{name}.txt", "--home", name, "--no-start"]
        run(
            [*words, *(["--approve", self.status()["task"]] if self.is_approved else [])],
            self.folder,
        )
        sheet = self.home(name) / "site.toml"
        sheet.write_text(sheet.read_text().replace(f"https://localhost:{self.port}", NOWHERE))
        assert NOWHERE in sheet.read_text()
        self.start_site(name)

    def start_site(self, name: str) -> None:
        listen = ["--listen", f"127.0.0.1:{self.listening[name]}"] if name in self.listening else []
        self._start(name, ["agent", "--home", name, *listen], self.folder)

    def outbox(self, name: str) -> Any:
        told = run(["--json", "site", "outbox", "--home", name], self.folder)
        return json.loads(told)["data"]

    # ---- as the coordinator ---------------------------------------------------------

    def call(self, name: str, body: dict[str, Any], certificate: bytes | None) -> tuple[int, Any]:
        """One question to a site that listens, with this certificate and key (PEM)."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            file = self.folder / "caller.pem"
            file.write_bytes(certificate)
            context.load_cert_chain(file)
        where = ("127.0.0.1", self.listening[name])
        line = http.client.HTTPSConnection(*where, context=context, timeout=40)
        try:
            line.request("POST", "/federated/client/train", json.dumps(body))
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            line.close()

    def authority(self) -> Authority:
        pem = (self.data / "authority.pem").read_bytes()
        return Authority.load(read_secret(self.data / "authority.key"), pem)

    def caller(self) -> bytes:
        """The coordinator's certificate as a caller."""
        return self.authority().issue_caller(SystemClock().now_ms()).pem().reveal()


def called(folder: Path, shape: Shape, names: list[str], *, is_approved: bool = True) -> Called:
    ports = {name: free_port() for name in names}
    return Called(folder, shape, listening=ports, is_approved=is_approved)


def finished(network: Network) -> str:
    with network:
        network.start_coordinator()
        for name in network.site_names():
            network.join(name)
        wait_until(network.is_finished, 90.0, "the study ends")
        assert [one["counted"] for one in network.rounds()] == [network.shape.sites] * 3
        return str(network.status()["model"])


def test_two_of_three_sites_listen_and_the_model_is_the_same(tmp_path: Path) -> None:
    shape = Shape(sites=3, rounds=3, quorum=3)
    network = called(tmp_path / "called", shape, ["site-1", "site-2"])
    assert finished(network) == finished(Network(tmp_path / "asking", shape))
    told = {name: network.outbox(name)["entries"] for name in network.site_names()}
    kinds = {name: [one["what"] for one in entries] for name, entries in told.items()}
    assert kinds["site-1"] == kinds["site-0"]
    assert kinds["site-1"].count("update") == 3


def test_killed_site_that_listens_is_called_again(tmp_path: Path) -> None:
    shape = Shape(sites=2, rounds=200, quorum=2, pace_s=0.2)
    with called(tmp_path / "n", shape, ["site-1"]) as network:
        network.start_coordinator()
        for name in network.site_names():
            network.join(name)
        network.wait_for_rounds(2)
        network.kill("site-1")
        network._start("site-1", ["agent", "--home", "site-1"], network.folder)  # as before
        done = network.status()["rounds"]["done"]
        network.wait_for_rounds(done + 3)
        told = run(["--json", "doctor", "--home", "site-1"], network.folder)  # there is no way out
        assert json.loads(told)["data"]["failed"] == 0
        network.kill("coordinator")
        network.start_coordinator()
        network.wait_for_rounds(done + 6)


def test_site_says_what_it_made_to_the_coordinator_alone(tmp_path: Path) -> None:
    shape = Shape(sites=2, rounds=200, quorum=2, pace_s=0.5)
    with called(tmp_path / "n", shape, ["site-1"]) as network:
        network.start_coordinator()
        for name in network.site_names():
            network.join(name)
        network.wait_for_rounds(1)
        number, base = _open_round(network)
        asked = {"round": number, "model_weights": base}
        caller = network.caller()
        status, told = network.call("site-1", asked, caller)
        while status == 503:  # it takes long to train here: to be asked again
            status, told = network.call("site-1", asked, caller)
        assert status == 200, told
        assert told["client_id"] == "counting.site-1"
        sent = {one["digest"] for one in network.outbox("site-1")["entries"]}
        assert told["model_weights"] in sent
        assert told["num_samples"] is None  # the plan weighs all sites alike: no count leaves

        other = asked | {"model_weights": "0" * 64}
        assert network.call("site-1", other, caller)[0] == 400
        assert network.call("site-1", asked | {"local_epochs": 7}, caller)[0] == 400
        assert network.call("site-1", asked | {"more": 1}, caller)[0] == 400
        _strangers_are_refused(network, asked)


def _open_round(network: Called) -> tuple[int, str]:
    """An open round, and the model that it starts from."""
    found: list[tuple[int, str]] = []

    def is_open() -> bool:
        told = network.status()
        if told["round"] is not None:
            found.append((told["round"]["number"], told["model"]))
        return bool(found)

    wait_until(is_open, 20.0, "a round is open")
    return found[0]


def _strangers_are_refused(network: Called, asked: dict[str, Any]) -> None:
    home = network.home("site-0")
    other_site = (home / "certificate.pem").read_bytes() + (home / "keys/site.pem").read_bytes()
    now_ms = SystemClock().now_ms()
    elsewhere = Authority.make(now_ms).issue_caller(now_ms).pem().reveal()
    server = network.authority().issue_server(["127.0.0.1"], now_ms).pem().reveal()
    for certificate in (None, other_site, elsewhere, server):
        with pytest.raises((OSError, http.client.HTTPException)):
            network.call("site-1", asked, certificate)
    where = ("127.0.0.1", network.listening["site-1"])
    with socket.create_connection(where, 5.0) as plain, suppress(ConnectionResetError):
        plain.sendall(b"POST /federated/client/train HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        assert b"HTTP" not in plain.recv(1000)


def test_nothing_is_trained_that_nobody_has_approved(tmp_path: Path) -> None:
    shape = Shape(sites=2, rounds=2, quorum=2, duration="60s")
    with called(tmp_path / "n", shape, ["site-0"], is_approved=False) as network:
        network.start_coordinator()
        for name in network.site_names():
            network.join(name)
        wait_until(lambda: "waits for approval" in network.tail("site-0"), 40.0, "an invitation")
        asked = {"round": 1, "model_weights": network.status()["model"]}
        status, told = network.call("site-0", asked, network.caller())
        assert (status, told["code"]) == (403, "E0312")
        assert not [one for one in network.outbox("site-0")["entries"] if one["what"] == "update"]
        run(
            ["site", "approve", "--home", "site-0", "--task", network.status()["task"]],
            network.folder,
        )
        wait_until(network.is_finished, 60.0, "the study ends")


def test_site_that_is_to_connect_gets_nowhere(tmp_path: Path) -> None:
    """That listening, and nothing else, is what lets the others above work."""
    shape = Shape(sites=1, rounds=1, quorum=1)
    with called(tmp_path / "n", shape, ["site-0"]) as network:
        network.start_coordinator()
        network.join("site-0")
        network.kill("site-0")
        outward = ["agent", "--home", "site-0", "--listen", "none"]
        network._start("site-0", outward, network.folder)
        wait_until(lambda: "does not answer" in network.tail("site-0"), 30.0, "no way out")
        with pytest.raises(ProcessesError):
            wait_until(network.is_finished, 2.0, "the study ends")


def test_site_that_cannot_be_called_is_shown_to_the_lead(tmp_path: Path) -> None:
    shape = Shape(sites=2, rounds=200, quorum=2, pace_s=0.2)
    with called(tmp_path / "n", shape, ["site-0"]) as network:
        network.start_coordinator()
        network.join("site-0")
        wait_until(lambda: _site(network)["roster"][0]["seen_ms"], 20.0, "it is called")
        wait_until(lambda: _unreached(network) is None, 20.0, "the lead sees that")
        network.ask("listens", "site-0", NOWHERE)
        wait_until(lambda: _unreached(network) is not None, 20.0, "the lead is told")
        told = _unreached(network)
        assert told["why"] == "Connection refused"
        wait_until(lambda: _site(network)["now_ms"] - told["since_ms"] > 2000, 20.0, "time passes")
        assert _unreached(network)["since_ms"] == told["since_ms"]
        network.ask("listens", "site-0", f"https://127.0.0.1:{network.listening['site-0']}")
        wait_until(lambda: _unreached(network) is None, 20.0, "it is called again")


def _unreached(network: Called) -> Any:
    return _site(network)["roster"][0]["unreached"]


def _site(network: Called) -> Any:
    """The federation, with its only site on the roster."""
    return json.loads(network.ask("status", "--sites"))["data"]["federations"][0]


def test_what_is_told_of_a_trouble_can_be_printed_and_is_short() -> None:
    assert _shown("no\x1b[31m way\n\u202e") == "no[31m way"
    assert len(_shown("x" * 5000)) == 120
