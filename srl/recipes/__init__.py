"""Recipes: functions of a few documented parameters that return an Experiment."""

BUILT_IN = {
    "ppo": "srl.recipes.ppo:ppo",
    "appo": "srl.recipes.appo:appo",
    "impala": "srl.recipes.impala:impala",
}
"""Names that `srl train NAME` knows; any other recipe is written module:function."""
