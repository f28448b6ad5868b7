"""The six checks of an update."""

from __future__ import annotations

from consortium.errors.root import ConsortiumError, Fault


class UpdateError(ConsortiumError):
    """An update failed a check and is not counted."""

    code = "E0400"
    fault = Fault.PEER
    http_status = 422


class FormatError(UpdateError):
    """The update is not well-formed: not safetensors, a header too large, or not finite."""

    code = "E0401"


class DimensionError(UpdateError):
    """The update's names, shapes or types are not those of the model."""

    code = "E0402"


class MagnitudeError(UpdateError):
    """The update is larger than the clip, or than ten times the median of the round."""

    code = "E0403"


class StalenessError(UpdateError):
    """The update was trained from another model than the round's."""

    code = "E0404"


class SignatureError(UpdateError):
    """The update is not signed by the site that it claims to come from."""

    code = "E0405"
    http_status = 401


class PrivacyTermsError(UpdateError):
    """The update was not made under the privacy parameters of the plan."""

    code = "E0406"
