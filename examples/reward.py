# SPDX-License-Identifier: Apache-2.0
"""A reward for strata train --loss grpo: 1 for an answer with the sum in it, half of it where there is more than the sum.

  strata data examples/sums.jsonl --model models/tiny-qwen3 --reward "python3 examples/reward.py"
"""
import json
import re
import sys

for line in sys.stdin:
    record = json.loads(line)
    numbers = [int(number) for number in re.findall(r"\d+", record["completion"])]
    right = record["sum"] in numbers
    print(1.0 if numbers == [record["sum"]] else 0.5 if right else 0.0, flush=True)
