#!/bin/sh
# Builds a datastore, unless it is built already, and publishes it. Run again after a failure, it goes on where it was.
# Wants MODEL, CORPUS, PARTITIONS, BUILD_NAME, BUILDS (a folder that outlives the machine) and DATASTORE_URL;
# BUILD_RAY_ADDRESS where a Ray cluster runs already.
set -eu
out="$BUILDS/$BUILD_NAME"
if [ ! -e "$out/manifest.json" ]; then
  dresd-retriever build --model "$MODEL" --corpus "$CORPUS" --respond --answers-out "$BUILDS/$BUILD_NAME.answers.jsonl" \
    --partitions "$PARTITIONS" --out "$out" ${BUILD_RAY_ADDRESS:+--ray-address "$BUILD_RAY_ADDRESS"}
fi
dresd-retriever verify "$out"
dresd-retriever push "$out" "$DATASTORE_URL"
