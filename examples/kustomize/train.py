"""Says who trains."""

import os

import dtj

run = dtj.init()
for _ in run.steps(3):
    run.say(f"{os.environ['WHO']} trains")
