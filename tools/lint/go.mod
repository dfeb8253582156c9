module freehold.dev/freehold/tools/lint

go 1.26
