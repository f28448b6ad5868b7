"""Errors of the user's task and of a site's records."""

from __future__ import annotations

from consortium.errors.root import ConsortiumError, Fault


class TaskError(ConsortiumError):
    """The user's task cannot be loaded or broke its contract."""

    code = "E0200"
    fault = Fault.CALLER
    http_status = 422
    exit_code = 3


class TaskEntryError(TaskError):
    """`[task] entry` does not lead to a task: no such file, no such name, or not a task."""

    code = "E0201"
    advice = 'write [task] entry = "task.py:name", where name was made with @consortium.task'


class BundleError(TaskError):
    """The task's files cannot be bundled, or a bundle is not what its hash says."""

    code = "E0202"


class LayoutError(TaskError):
    """Shared tensors differ between sites or rounds in name, shape or type."""

    code = "E0203"
    advice = "shared tensors need one name, shape and type at all sites"


class TaskResultError(TaskError):
    """The task raised, or returned something other than what its contract says."""

    code = "E0204"
    exit_code = 1
    advice = "see docs/how-to/write-a-task.md, or write-a-numpy-task.md"


class SiteDataError(TaskError):
    """A site's data cannot be read or used."""

    code = "E0205"


class LabelError(SiteDataError):
    """The label column is not there, or its values are not labels."""

    code = "E0206"
    advice = "compare label=, positive= and categories= with the first lines of the file"


class NotANumberError(SiteDataError):
    """A column that should hold numbers holds text, or a number that is not finite."""

    code = "E0207"
    advice = "name its categories, or leave the column out with columns=[...]"


class MissingValuesError(SiteDataError):
    """Values are missing, and the task does not say what to do about it."""

    code = "E0208"
    advice = "missing='drop' leaves such records out, missing='mean' fills in the site's mean"


class SchemaError(SiteDataError):
    """The columns are not those that were expected."""

    code = "E0209"
    advice = (
        "read the same columns in the same order at every site, or keep the first layer private"
    )


class TooFewRecordsError(SiteDataError):
    """There are too few records to train or to test with."""

    code = "E0210"


class DownloadError(SiteDataError):
    """The publisher of a data set cannot be reached, or does not send it."""

    code = "E0211"
    exit_code = 6


class ChecksumError(SiteDataError):
    """A data set is not the one that was published: its SHA-256 differs."""

    code = "E0212"
    exit_code = 7


class QualityError(SiteDataError):
    """The site's data did not pass its own quality check. The findings stay at the site."""

    code = "E0213"


class MissingExtraError(TaskError):
    """Something needs an optional dependency that is not installed."""

    code = "E0214"


class ResourceLimitError(TaskError):
    """The task needed more memory, time or processes than the site gives it. It was ended."""

    code = "E0215"
    exit_code = 1
    advice = "consortium site policy    # shows the site's limits"
