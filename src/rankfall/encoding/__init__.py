"""Rules that encode raw values as ids of embedding rows or as numbers.

Preparing a log and answering a request use the same rules, so a value has the same id in both:

- :mod:`rankfall.data.impressions.encoding` applies them to the columns of a log;
- :mod:`rankfall.serving.value_encoders` applies them to the values of a request, after checking each of them.

This package needs numpy and pyarrow alone: a bundle answers without polars, pydantic and torch.
"""

from rankfall.encoding.rules import FIRST_KNOWN as FIRST_KNOWN
from rankfall.encoding.rules import MISSING as MISSING
from rankfall.encoding.rules import UNSEEN as UNSEEN
from rankfall.encoding.rules import BadValueError as BadValueError
from rankfall.encoding.rules import Buckets as Buckets
from rankfall.encoding.rules import HashedIds as HashedIds
from rankfall.encoding.rules import NumberedIds as NumberedIds
from rankfall.encoding.rules import Numbers as Numbers
from rankfall.encoding.rules import Rule as Rule
from rankfall.encoding.rules import TimePart as TimePart
from rankfall.encoding.rules import VocabularyIds as VocabularyIds
from rankfall.encoding.rules import rule_from_json as rule_from_json
