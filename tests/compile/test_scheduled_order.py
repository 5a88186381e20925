"""What belongs to a schedule, and what does not."""

import pytest

from lagom_jax.compile import ScheduledOrder
from lagom_jax.hlo.text import parse_text

BODY = """
inner {{
  a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  ROOT c = f32[8] {inside}(a, b)
}}

ENTRY {entry} {{
  p = f32[8] parameter(0)
  q = f32[8] parameter(1)
  {name} = f32[8] fusion(p, q), kind=kLoop, calls=inner
  r = f32[8] multiply(p, q)
  ROOT out = (f32[8], f32[8]) tuple({name}, r)
}}
"""


def fingerprint(*, alias="", inside="add", entry="main", name="f"):
    head = f"HloModule m, is_scheduled=true{alias}\n"
    text = head + BODY.format(inside=inside, entry=entry, name=name)
    return ScheduledOrder.of(parse_text(text, isolated=False)).fingerprint


def test_names_do_not():
    assert fingerprint() == fingerprint(entry="other", name="g")


@pytest.mark.parametrize(
    "changed",
    [
        {"alias": ", input_output_alias={ {0}: (0, {}, may-alias) }"},
        {"alias": ", input_output_alias={ {0}: (1, {}, may-alias) }"},
        {"inside": "subtract"},
    ],
)
def test_what_decides_who_may_overtake_whom_does(changed):
    assert fingerprint() != fingerprint(**changed)


def test_a_schedule_that_donates():
    text = "HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}) }\n"
    text += "ENTRY e { ROOT p = f32[8] parameter(0) }"
    assert ScheduledOrder.of(parse_text(text, isolated=False)).donates
