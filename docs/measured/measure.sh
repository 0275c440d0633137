#!/bin/sh
# Measures speed-up against temperature and against context, and keeps the figures here. About a
# quarter of an hour on two cores that do nothing else.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for temperature in 0 0.3 0.6 1.0 1.4; do
    outdraft bench --limit 1 --max-new-tokens 96 --dtype float32 --temperature "$temperature" \
        -o "$work/temperature-$temperature"
done
for tokens in 128 512 1024 2048; do
    python "$here/questions.py" "$tokens" > "$work/$tokens.jsonl"
    outdraft bench --questions "$work/$tokens.jsonl" --max-new-tokens 96 --dtype float32 \
        -o "$work/context-$tokens"
done
python "$here/draw.py" keep "$work"
