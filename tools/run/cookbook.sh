#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Recipes of tinker-cookbook 0.6.1, unmodified and without any other network, against a server with the bundled model
# behind the recipes' default names, and a tiny Qwen3.5 (tools/run/tiny_qwen35.sh) behind Qwen/Qwen3.5-4B. Prints a line a recipe and fails if one of them does. Logs: OUT/logs.
# usage: tools/run/cookbook.sh PROGRAM [RECIPE ...]        recipes: see `all` below; none given: all of them
# COOKBOOK_PYTHON names a Python that has tools/requirements/cookbook.txt already; otherwise they are installed into
# build/cookbook (about 7 GB, since PyPI's torch brings its GPU libraries). COOKBOOK_OUT: instead of out/cookbook.
# COOKBOOK_MODEL: another model directory, behind all names. COOKBOOK_SERVE: more options of strata serve. COOKBOOK_RANKS: pipeline=2 or
# tensor=2, a server over so many ranks (Open MPI). STEPS and CURVE_STEPS: optimizer steps of a recipe and of math_rl's curves.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/run/serve.inc.sh
strata=$(realpath "${1:?usage: tools/run/cookbook.sh PROGRAM [RECIPE ...]}")
shift
all=(chat_sl guess_number twenty_questions text_arena shorter rubric rl_loop sl_loop prompt_distillation
  two_at_once download download_qwen35 math_rl math_rl_default)
recipes=("$@")
[ ${#recipes[@]} -gt 0 ] || recipes=("${all[@]}")
steps=${STEPS:-2}
curve_steps=${CURVE_STEPS:-60}
names=(Qwen/Qwen3.5-9B Qwen/Qwen3.5-9B-Base Qwen/Qwen3.6-35B-A3B Qwen/Qwen3-8B)
qwen35_name=Qwen/Qwen3.5-4B
model=$(realpath "${COOKBOOK_MODEL:-models/tiny-qwen3}")
tools=$PWD/tools

python=${COOKBOOK_PYTHON:-build/cookbook/bin/python}
if [ -z "${COOKBOOK_PYTHON:-}" ] && [ ! -e build/cookbook/ready ]; then
  echo "Installing tinker-cookbook from PyPI into build/cookbook (once, about 7 GB)"
  python3 -m venv --clear build/cookbook
  "$python" -m pip install --quiet --disable-pip-version-check -r tools/requirements/cookbook.txt
  # Without its dependencies, which name a tml-renderers that PyPI lacks; no recipe here uses what it brings.
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps tinker-cookbook==0.6.1 tml-renderers==0.2.1
  touch build/cookbook/ready
fi
python=$(realpath -s "$python")

out=${COOKBOOK_OUT:-out/cookbook}
rm -rf "$out"
mkdir -p "$out/logs" "$out/work/rubric" "$out/work/tinker_cookbook/example_data"
out=$(realpath "$out")
qwen35=$model
if [ -z "${COOKBOOK_MODEL:-}" ]; then
  qwen35=$out/tiny-qwen3.5
  tools/run/tiny_qwen35.sh "$strata" "$qwen35" >"$out/logs/tiny_qwen35"
fi
served=()
serve_as() {  # name of the cookbook, of the server, folder
  served+=(--alias "$1=$2")
  mkdir -p "$out/work/$(dirname "$1")"
  ln -sfn "$3" "$out/work/$1"
}
ranks=${COOKBOOK_RANKS:-}
for name in "${names[@]}"; do serve_as "$name" tiny "$model"; done
serve_as "$qwen35_name" tiny-qwen3.5 "$qwen35"
start_server "$out/server.log" "$strata" --model "tiny=$model" --model "tiny-qwen3.5=$qwen35" "${served[@]}" --no-keys --listen 127.0.0.1:0 \
  --metrics-listen 127.0.0.1:0 --data "$out/data" ${COOKBOOK_SERVE:-}
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$out/hf" TINKER_BASE_URL=$url TINKER_TELEMETRY=0
export TINKER_API_KEY=tml-this-server-runs-without-keys TINKER_COOKBOOK_RUNS_DIR=$out/runs TOKENIZERS_PARALLELISM=false
cd "$out/work"
"$python" "$tools/data/make_cookbook_data.py" "$tools/../examples/answers.jsonl" .
example=$("$python" -c 'import importlib.util as u; print(u.find_spec("tinker_cookbook").submodule_search_locations[0])')
head -n 100 "$example/example_data/multilingual.txt" >tinker_cookbook/example_data/multilingual.txt

recipe() {  # log name, module, options
  local log=$1 module=$2
  shift 2
  "$python" -m "tinker_cookbook.recipes.$module" "$@" log_path="$out/runs/$log" \
    >"$out/logs/$log" 2>&1
}
limit="max_steps=$steps"
no_eval="eval_every=0"  # they play hundreds of games before and after each run

chat_sl() {
  local chats=$example/example_data/conversations.jsonl
  recipe "${1:-chat_sl}" chat_sl.train dataset="$chats" batch_size=4 max_length=512 lora_rank=8 rolling_save_every=1 $limit
}
guess_number() {
  recipe "${1:-guess_number}" multiplayer_rl.guess_number.train group_size=4 batch_size=4 max_tokens=8 $no_eval $limit
}
twenty_questions() {
  recipe twenty_questions multiplayer_rl.twenty_questions.train group_size=4 batch_size=4 max_tokens=8 $no_eval $limit
}
text_arena() {
  recipe text_arena multiplayer_rl.text_arena.train batch_size=4 num_train_datapoints=4 num_test_datapoints=2 \
    max_tokens=8 $no_eval $limit
}
shorter() { recipe shorter preference.shorter.train group_size=4 batch_size=4 max_tokens=8 $no_eval $limit; }
rubric() {
  "$python" -c 'from tinker_cookbook.recipes.rubric.generate_data import generate_dataset as g; g(64, 8, 1, "rubric/")' \
    >"$out/logs/rubric_data" 2>&1
  local data=(train_jsonl_path=rubric/example_rubric_train.jsonl test_jsonl_path=rubric/example_rubric_test.jsonl)
  recipe rubric rubric.train "${data[@]}" groups_per_batch=4 train_group_size=2 max_tokens=8 $no_eval $limit
}
rl_loop() {
  recipe rl_loop rl_loop loss_fn=importance_sampling batch_size=4 group_size=2 max_tokens=8 lora_rank=8 $limit
}
sl_loop() { recipe sl_loop sl_loop batch_size=8 max_length=256 lora_rank=8 $limit; }
prompt_distillation() {
  "$python" -m tinker_cookbook.recipes.prompt_distillation.create_data output_file=distilled.jsonl \
    >"$out/logs/create_data" 2>&1
  local data=distilled.jsonl answered
  answered=$(wc -l <distilled.jsonl)
  echo "                     $answered of 100 answers in the demanded form"
  [ "$answered" -ge 8 ] || data=languages.jsonl  # hand-made
  recipe prompt_distillation prompt_distillation.train file_path=$data batch_size=4 max_length=512 lora_rank=8 $limit
}
two_at_once() {
  chat_sl two_sl &
  local first=$!
  guess_number two_rl
  wait "$first"
}
download() { "$python" "$tools/run/cookbook_download.py" "$model" Qwen/Qwen3-8B >"$out/logs/download" 2>&1; }
download_qwen35() { "$python" "$tools/run/cookbook_download.py" "$qwen35" "$qwen35_name" >"$out/logs/download_qwen35" 2>&1; }
arithmetic() {
  local log=$1
  shift
  recipe "$log" math_rl.train "$@" model_name=Qwen/Qwen3.5-9B group_size=8 groups_per_batch=16 max_tokens=5 lora_rank=16 \
    learning_rate=4e-4 eval_every=0 save_every=0 max_steps="$curve_steps"
}
math_rl() { arithmetic math_rl loss_fn=importance_sampling; }
math_rl_default() { arithmetic math_rl_default; }

failed=0
for name in "${recipes[@]}"; do
  start=$SECONDS
  set +e  # an `if` around it would switch -e off inside
  (set -e; "$name")
  status=$?
  set -e
  if [ $status -eq 0 ]; then
    printf '%-20s ok, %d s\n' "$name" $((SECONDS - start))
  else
    printf '%-20s FAILED: %s\n' "$name" "$out/logs/$name"
    tail -n 15 "$out/logs/$name" >&2 || true
    failed=$((failed + 1))
  fi
done
stop_server
curves=()
for name in math_rl math_rl_default; do
  [ ! -e "$out/runs/$name/metrics.jsonl" ] || curves+=("$out/runs/$name/metrics.jsonl")
done
if [ ${#curves[@]} -gt 0 ]; then
  "$python" "$tools/run/plot_rewards.py" "$out/rewards.svg" "${curves[@]}" || failed=$((failed + 1))
fi
echo "$((${#recipes[@]} - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
