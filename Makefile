# make demo   a tenant from nothing to a kubeconfig, and away again        make dev    a plane with a sandbox, until Ctrl-C
# make test   everything that must hold                                   make check  formatting, vet, lint, drift
# make bench  the numbers, as ratios to a baseline of the same run        make build  every binary, under bin/

SHELL       := /bin/sh
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GO_LDFLAGS  := -s -w -X main.version=$(VERSION)
BINARIES    := freehold freehold-agent talosim terraform-provider-talos
TEST_FLAGS  ?=
TEST_ENV     = FREEHOLD_TOFU=$$(tools/need.sh tofu) FREEHOLD_KUBECTL=$$(tools/need.sh kubectl) \
               FREEHOLD_POSTGRES=$$(tools/need.sh postgres) FREEHOLD_BIN=$(CURDIR)/bin
GENERATED   := api/openapi.json docs/reference/cli.md
export CGO_ENABLED ?= 0

.DEFAULT_GOAL := build
.PHONY: build demo dev test test-full check lint vuln generate drift bench clean tofu kubectl postgres

build: $(addprefix bin/,$(BINARIES))

# The go command knows best what is stale.
.PHONY: $(addprefix bin/,$(BINARIES))
$(addprefix bin/,$(BINARIES)): bin/%:
	@echo building $@
	@go build -ldflags '$(GO_LDFLAGS)' -o $@ ./cmd/$*

tofu kubectl postgres:
	@tools/need.sh $@ >/dev/null

demo: bin/freehold tofu
	@FREEHOLD_TOFU=$$(tools/need.sh tofu) bin/freehold demo

dev: bin/freehold tofu
	@FREEHOLD_TOFU=$$(tools/need.sh tofu) exec bin/freehold dev

# Race detection needs cgo. The binaries under test are the ones that users start. What is killed 200 times is a process
# of its own, in which there is nothing for the race detector to see.
test: check build tofu kubectl postgres
	@go test -run TestContract/Crashes ./internal/kernel/store/sqlite
	@$(TEST_ENV) CGO_ENABLED=1 go test -race -short $(TEST_FLAGS) ./...

# The deep variants: more kills, longer random walks, fuzzing of every decoder.
test-full: check build tofu kubectl postgres
	@$(TEST_ENV) CGO_ENABLED=1 go test -race -timeout 60m $(TEST_FLAGS) ./...
	@tools/fuzz.sh 30s

check: lint drift vuln

lint:
	@test -z "$$(gofmt -l client cmd internal test bench api)" || { echo 'gofmt these:'; gofmt -l client cmd internal test bench api; exit 1; }
	@go vet ./...
	@$$(tools/need.sh golangci-lint) run --allow-parallel-runners

# Needs the vulnerability database; without it there is nothing to say.
vuln:
	@tools/vuln.sh

generate:
	@go generate ./...

drift: generate
	@git diff --exit-code --stat -- $(GENERATED) || { echo 'generated files changed: commit the result of make generate'; exit 1; }

bench: build tofu
	@FREEHOLD_TOFU=$$(tools/need.sh tofu) FREEHOLD_BIN=$(CURDIR)/bin go test -p 1 -run '^$$' -bench . -benchtime 1x ./bench/...

clean:
	rm -rf bin build
