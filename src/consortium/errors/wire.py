"""Errors of what goes between coordinator, sites and operators."""

from __future__ import annotations

from consortium.errors.root import ConsortiumError, Fault


class WireError(ConsortiumError):
    """What went between a coordinator and a site cannot be used: a message is malformed."""

    code = "E0810"
    fault = Fault.PEER
    http_status = 400
    advice = "use the same version of consortium on both sides"


class UnreachableError(WireError):
    """The other side does not answer. Nothing is lost: the agent tries again by itself."""

    code = "E0811"
    http_status = 503
    exit_code = 6
    advice = (
        "see that the address is right, that the coordinator runs, and that no firewall is between"
    )


class NotEnrolledError(WireError):
    """No such site is enrolled here, or no such token holds; or it was revoked."""

    code = "E0812"
    fault = Fault.CALLER
    http_status = 401
    exit_code = 4
    advice = "join with an invitation; ask the lead for one"


class BadTokenError(WireError):
    """A pasted token is not whole, or it is unknown, used or expired: which, is not said."""

    code = "E0813"
    fault = Fault.CALLER
    http_status = 403
    exit_code = 4
    advice = "paste the whole line; a token works once and expires, so ask the lead for another"


class UnsignedRequestError(WireError):
    """A site's request has no signature, a malformed one, one that does not fit, or one that
    was meant for another coordinator."""

    code = "E0814"
    http_status = 401
    exit_code = 4
    advice = "let the agent send its requests, and let nothing rewrite them on the way"


class ReplayedNonceError(WireError):
    """The site has used this nonce for another request. It had no effect this time."""

    code = "E0815"
    http_status = 409
    advice = "draw a new nonce for each request; send the same bytes again to get the same answer"


class WrongOffsetError(WireError):
    """A chunk does not start where the upload ends. The details say where that is."""

    code = "E0816"
    http_status = 409
    advice = "go on from the offset in the details"


class TooLargeError(WireError):
    """A body, a chunk or an upload is larger than what is allowed here."""

    code = "E0817"
    http_status = 413
    advice = "send less at a time; an update is as large as the plan's layout says"


class CertificateError(WireError):
    """A certificate, or a request for one, is malformed, expired, of another authority, or for
    a key that cannot be used here."""

    code = "E0818"
    http_status = 403
    exit_code = 4
    advice = "compare the clocks; join again if the certificate has expired"


class UnknownFederationError(WireError):
    """There is no federation of that name or id at this coordinator."""

    code = "E0819"
    fault = Fault.CALLER
    http_status = 404
    advice = "list the federations that are there"


class ForbiddenError(WireError):
    """Who asks is known, but its role may not do this."""

    code = "E0820"
    fault = Fault.CALLER
    http_status = 403
    exit_code = 4
    advice = "use a token of a role that may, or ask the lead"


class RateLimitError(WireError):
    """Too many requests came from this address, site or token. Nothing was done."""

    code = "E0821"
    fault = Fault.CALLER
    http_status = 429
    exit_code = 6
    advice = "wait as long as Retry-After says; the agent does so by itself"


class ProtocolVersionError(WireError):
    """The other side speaks a version of the protocol that this side does not know."""

    code = "E0822"
    fault = Fault.PEER
    advice = "update the older side: a coordinator and its sites may be one version apart"
