"""Stories of several workers, ticked by hand and compared as transcripts."""

import pytest

pytest.register_assert_rewrite("tests.scenarios.story")
