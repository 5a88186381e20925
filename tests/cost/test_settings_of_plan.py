"""Which collectives of a program a plan speaks of."""

import dataclasses

from lagom_jax.api import report_scheduled
from lagom_jax.cluster import Cluster
from lagom_jax.cost.nccl_default import nccl_default
from lagom_jax.cost.settings_of_plan import missing_sites, settings_of
from lagom_jax.cost.span import span_of
from lagom_jax.hlo import read_module
from lagom_jax.hlo.text import parse_text
from lagom_jax.plan import Cap, Setting
from lagom_jax.program.build import build_program
from lagom_jax.scheduled import Scheduled

from ..plan.plans import made_by_hand

H100 = Cluster.parse("h100:1x8")
GROUPS = "channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true"
TEXT = f"""HloModule m, is_scheduled=true, num_partitions=8

ENTRY e {{
  p = f32[65536] parameter(0)
  gather-start.1 = (f32[65536], f32[524288]) all-gather-start(p), dimensions={{0}}, {GROUPS}
  other = (f32[65536], f32[524288]) all-gather-start(p), dimensions={{0}}, {GROUPS}
  done = f32[524288] all-gather-done(gather-start.1)
  ROOT r = f32[524288] all-gather-done(other)
}}
"""
MODULE = read_module(parse_text(TEXT, isolated=False))
PROGRAM = build_program(MODULE)
PLAN = made_by_hand()


def plan_for(*sites, setting):
    one = dataclasses.replace(
        PLAN.settings[0], kind="all-gather", sites=sites, setting=setting
    )
    return dataclasses.replace(PLAN, settings=(one,))


def test_a_setting_goes_to_the_collectives_that_it_names():
    plan = plan_for("gather-start.1", setting=Setting("ring", "ll", 4, 512, 32768))
    found = settings_of(plan, PROGRAM, H100)
    assert {c.name: str(s) for c, s in found.items()} == {
        "gather-start.1": "ring/ll/4/512/32768"
    }
    assert missing_sites(plan, PROGRAM) == ()


def test_a_cap_leaves_the_rest_as_nccl_has_it():
    found = settings_of(plan_for("other", setting=Cap(2)), PROGRAM, H100)
    ((site, setting),) = found.items()
    usual = nccl_default(site.kind, float(site.bytes), span_of(site.groups, H100), H100)
    assert usual.channels > 2
    assert setting == dataclasses.replace(usual, channels=2)


def test_what_the_program_lacks_is_said():
    plan = plan_for("other", "gone", setting=Setting("ring", "ll", 4, 512, 32768))
    assert missing_sites(plan, PROGRAM) == ("gone",)
    report = report_scheduled(Scheduled(MODULE, H100, plan=plan))
    assert any(
        "1 collective that this program lacks, such as gone" in n for n in report.notes
    )
