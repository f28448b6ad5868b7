"""Receipts: proofs that the coordinator's log has this site's updates. One may be lost on its way,
or because of a disk that was full; the log has the update all the same, and proves it again."""

from __future__ import annotations

import threading

from consortium.core.codec import decode
from consortium.core.facts import UpdateReceived
from consortium.core.ids import Digest
from consortium.drive.directory import SIGNER_NAME
from consortium.errors import ProofError, WitnessError
from consortium.ledger.notary import origin_of
from consortium.ledger.note import Verifier
from consortium.ledger.proof import read_proof, verify_proof
from consortium.site.home import SiteHome
from consortium.site.machine import Machine
from consortium.site.transport import Client
from consortium.wire.messages import ReceiptReply


class Receipts:
    """Looks at receipts and keeps them. Several threads may use it."""

    def __init__(self, home: SiteHome, machine: Machine, client: Client) -> None:
        self._home, self._machine, self._client = home, machine, client
        self._writing = threading.Lock()  # of one file, by one at a time

    def keep(self, number: int, update: Digest, reply: ReceiptReply, seen_size: int) -> None:
        """The proof must lead from our update to a root that the log's key has signed. The log
        had `seen_size` facts when the receipt was asked for."""
        held, proof = self._home.enrolment, read_proof(reply.proof)
        log_key = Verifier(SIGNER_NAME, bytes.fromhex(held.log_key))
        checkpoint = verify_proof(proof, origin_of(held.federation), [log_key])
        if checkpoint.size < seen_size:
            raise WitnessError("the receipt is of a shorter log than the one that was seen here")
        fact = decode(proof.record)
        told = isinstance(fact, UpdateReceived) and (fact.round, fact.update)
        if told != (number, update):
            raise ProofError("the receipt is for another update")
        with self._writing:
            self._home.keep_receipt(number, reply.proof)

    def fetch(self, number: int, update: Digest) -> None:
        seen_size = self._machine.state.seen_size
        path = f"/v1/rounds/{number}/receipt"
        reply = self._client.call("GET", path, reply=ReceiptReply, round=number)
        self.keep(number, update, reply, seen_size)

    def make_up_for_a_lost_one(self, number: int) -> None:
        """Fetch that of the round that this site is in, if there should be one and is none."""
        with self._machine.lock:
            state = self._machine.state
            update = state.update if state.round == number else None
        if update is not None and self._home.receipt(number) is None:
            self.fetch(number, update)
