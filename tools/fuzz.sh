#!/bin/sh
# Fuzzes every target of the tree, each for the given time: tools/fuzz.sh 30s
set -eu
cd "$(dirname "$0")/.."
grep -rl --include='*_test.go' '^func Fuzz' client internal cmd | while read -r file; do
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$file" | while read -r target; do
		echo "fuzz $target in $(dirname "$file")"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "${1:-30s}" -fuzzminimizetime 1x "./$(dirname "$file")"
	done
done
