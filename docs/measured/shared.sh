#!/bin/sh
# All drafters beside all baselines on Spec-Bench's questions, twelve of each group:
#
#     sh shared.sh question.jsonl DIR
#
# The datastore is made of outdraft's own documents, the draft model of the default model's first
# ten layers of thirty. About forty minutes on two cores that do nothing else; interrupted, the same
# command goes on.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
questions=$1
folder=$2
mkdir -p "$folder"
[ -f "$folder/docs.datastore" ] ||
    outdraft datastore build "$here"/../*.md "$here"/../../README.md --output "$folder/docs.datastore"
[ -d "$folder/first-10-layers" ] ||
    python "$here/first_layers.py" 10 "$folder/first-10-layers"
outdraft bench --questions "$questions" --limit 12 --max-new-tokens 128 --dtype bfloat16 \
    --baseline plain,hf,hf-lookup \
    --drafter auto --drafter suffix --drafter prompt-lookup --drafter recycling \
    --drafter lookahead --drafter layer-skip --drafter "model:$folder/first-10-layers" \
    --drafter "datastore:$folder/docs.datastore" -o "$folder/run"
outdraft report "$folder/run" --png "$folder/run/speedups.png"
