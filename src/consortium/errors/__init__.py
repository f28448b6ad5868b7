"""Every error that consortium raises on purpose, on one page.

    ConsortiumError
    ├── InternalError              ours
    ├── UsageError                 a command was called with something that cannot be
    │   └── UnknownCodeError
    ├── PlanError                  the plan file
    │   ├── PlanSyntaxError  UnknownKeyError  WrongTypeError
    │   └── ImpossiblePlanError  UnsupportedPlanError  PlanFileError
    ├── TaskError                  the user's task
    │   ├── TaskEntryError  BundleError  LayoutError  TaskResultError  MissingExtraError
    │   ├── ResourceLimitError
    │   └── SiteDataError          a site's records
    │       ├── LabelError  NotANumberError  MissingValuesError  SchemaError
    │       └── TooFewRecordsError  QualityError  DownloadError  ChecksumError
    ├── Refusal                    the protocol says no; the state is untouched
    │   ├── UnauthorizedClientError  DeadlineExpiredError (NotNeededError)  WrongRoundError
    │   ├── AlreadySubmittedError  WrongPhaseError  InsufficientParticipantsError
    │   ├── RoundOpenError  NoModelError  UnknownVersionError  FederationOverError
    │   ├── InvalidInputError  NotApprovedError  OnHoldError  PolicyError
    │   └── TooStaleError  IsolationError  PrivacyBudgetExceededError
    │       StaleQuoteError
    ├── UpdateError                one update failed one of the six checks
    │   └── FormatError  DimensionError  MagnitudeError  StalenessError
    │       SignatureError  PrivacyTermsError
    ├── StoreError
    │   ├── ConflictError  MissingBlobError  CorruptBlobError
    │   └── StoreFailedError (DiskFullError)  CorruptStoreError
    ├── WireError                  between coordinator, sites and operators
    │   ├── UnreachableError  NotEnrolledError  BadTokenError  UnsignedRequestError
    │   ├── ReplayedNonceError  WrongOffsetError  TooLargeError  CertificateError
    │   └── UnknownFederationError  ForbiddenError  RateLimitError  ProtocolVersionError
    ├── VerificationError          evidence that does not hold
    │   └── ProofError  NoteError  WitnessError  AuditError  RestoredBackupError
    └── CodecError  ModelFileError  WeakKeyError

House rules: a code is never reused and never changes its meaning. `hint` is something
to paste or to do. No message carries a value from somebody's data.
"""

from consortium.errors.evidence import (
    AuditError,
    NoteError,
    ProofError,
    RestoredBackupError,
    VerificationError,
    WitnessError,
)
from consortium.errors.plan import (
    ImpossiblePlanError,
    PlanError,
    PlanFileError,
    PlanSyntaxError,
    UnknownKeyError,
    UnsupportedPlanError,
    WrongTypeError,
)
from consortium.errors.refusal import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    FederationOverError,
    InsufficientParticipantsError,
    InvalidInputError,
    IsolationError,
    NoModelError,
    NotApprovedError,
    NotNeededError,
    OnHoldError,
    PolicyError,
    PrivacyBudgetExceededError,
    Refusal,
    RoundOpenError,
    StaleQuoteError,
    TooStaleError,
    UnauthorizedClientError,
    UnknownVersionError,
    WrongPhaseError,
    WrongRoundError,
)
from consortium.errors.root import (
    ConsortiumError,
    Fault,
    InternalError,
    UnknownCodeError,
    UsageError,
    every_error,
)
from consortium.errors.store import (
    CodecError,
    ConflictError,
    CorruptBlobError,
    CorruptStoreError,
    DiskFullError,
    MissingBlobError,
    ModelFileError,
    StoreError,
    StoreFailedError,
    WeakKeyError,
)
from consortium.errors.task import (
    BundleError,
    ChecksumError,
    DownloadError,
    LabelError,
    LayoutError,
    MissingExtraError,
    MissingValuesError,
    NotANumberError,
    QualityError,
    ResourceLimitError,
    SchemaError,
    SiteDataError,
    TaskEntryError,
    TaskError,
    TaskResultError,
    TooFewRecordsError,
)
from consortium.errors.update import (
    DimensionError,
    FormatError,
    MagnitudeError,
    PrivacyTermsError,
    SignatureError,
    StalenessError,
    UpdateError,
)
from consortium.errors.wire import (
    BadTokenError,
    CertificateError,
    ForbiddenError,
    NotEnrolledError,
    ProtocolVersionError,
    RateLimitError,
    ReplayedNonceError,
    TooLargeError,
    UnknownFederationError,
    UnreachableError,
    UnsignedRequestError,
    WireError,
    WrongOffsetError,
)

__all__ = [
    "AlreadySubmittedError",
    "AuditError",
    "BadTokenError",
    "BundleError",
    "CertificateError",
    "ChecksumError",
    "CodecError",
    "ConflictError",
    "ConsortiumError",
    "CorruptBlobError",
    "CorruptStoreError",
    "DeadlineExpiredError",
    "DimensionError",
    "DiskFullError",
    "DownloadError",
    "Fault",
    "FederationOverError",
    "ForbiddenError",
    "FormatError",
    "ImpossiblePlanError",
    "InsufficientParticipantsError",
    "InternalError",
    "InvalidInputError",
    "IsolationError",
    "LabelError",
    "LayoutError",
    "MagnitudeError",
    "MissingBlobError",
    "MissingExtraError",
    "MissingValuesError",
    "ModelFileError",
    "NoModelError",
    "NotANumberError",
    "NotApprovedError",
    "NotEnrolledError",
    "NotNeededError",
    "NoteError",
    "OnHoldError",
    "PlanError",
    "PlanFileError",
    "PlanSyntaxError",
    "PolicyError",
    "PrivacyBudgetExceededError",
    "PrivacyTermsError",
    "ProofError",
    "ProtocolVersionError",
    "QualityError",
    "RateLimitError",
    "Refusal",
    "ReplayedNonceError",
    "ResourceLimitError",
    "RestoredBackupError",
    "RoundOpenError",
    "SchemaError",
    "SignatureError",
    "SiteDataError",
    "StaleQuoteError",
    "StalenessError",
    "StoreError",
    "StoreFailedError",
    "TaskEntryError",
    "TaskError",
    "TaskResultError",
    "TooFewRecordsError",
    "TooLargeError",
    "TooStaleError",
    "UnauthorizedClientError",
    "UnknownCodeError",
    "UnknownFederationError",
    "UnknownKeyError",
    "UnknownVersionError",
    "UnreachableError",
    "UnsignedRequestError",
    "UnsupportedPlanError",
    "UpdateError",
    "UsageError",
    "VerificationError",
    "WeakKeyError",
    "WireError",
    "WitnessError",
    "WrongOffsetError",
    "WrongPhaseError",
    "WrongRoundError",
    "WrongTypeError",
    "every_error",
]
