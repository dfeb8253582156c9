#!/bin/sh
# Prints the path of a build or test tool, building it first from its pinned module where this machine has none.
#   tools/need.sh tofu|kubectl|golangci-lint|postgres
# postgres is the folder of a PostgreSQL server's programs, from Debian's package.
# Built tools live in a cache outside the tree, keyed by version: `git clean` does not lose them.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/freehold

# pinned MODULE-FOLDER MODULE: the version that the tool's go.mod requires, without the v.
pinned() { sed -n "s|^\(require \)\{0,1\}[[:space:]]*$2 v\([^ ]*\).*|\2|p" "$root/tools/$1/go.mod" | head -n 1; }

# build NAME VERSION PACKAGE LDFLAGS: the cached binary's path. Built under a temporary name, so that an
# interrupted build leaves nothing that looks whole.
build() {
	bin=$cache/$1-$2/$1
	if [ ! -x "$bin" ]; then
		echo "building $1 $2 (once; it goes to $bin)" >&2
		mkdir -p "$cache/$1-$2"
		for try in 1 2 3; do
			if (cd "$root/tools/$1" && CGO_ENABLED=0 GOFLAGS=-buildvcs=false go build -trimpath -ldflags "-s -w $4" -o "$bin.$$" "$3") >&2; then
				mv "$bin.$$" "$bin"
				break
			fi
			[ $try -lt 3 ] || { echo "tools/need.sh: $1 $2 could not be built" >&2; exit 1; }
			sleep $((try * 5))
		done
	fi
	echo "$bin"
}

# postgres_bin: the newest PostgreSQL server's programs on this machine, or nothing.
postgres_bin() {
	for bin in $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -rV) "$(dirname "$(command -v initdb || echo /none/initdb)")"; do
		if [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ]; then
			echo "$bin"
			return
		fi
	done
}

# install_postgres installs the programs alone: no cluster is made, and none is started.
install_postgres() {
	command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || { echo "tools/need.sh: install a PostgreSQL server (initdb and postgres); no cluster has to run" >&2; exit 1; }
	echo "installing Debian's postgresql" >&2
	if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
		mkdir -p /etc/postgresql-common
		echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
	fi
	for try in 1 2 3; do
		if { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends -o Dpkg::Options::=--force-confold postgresql; } >&2; then
			return
		fi
		[ $try -lt 3 ] || { echo "tools/need.sh: postgresql could not be installed" >&2; exit 1; }
		sleep $((try * 5))
	done
}

case ${1:-} in
postgres)
	found=$(postgres_bin)
	if [ -z "$found" ]; then
		install_postgres
		found=$(postgres_bin)
	fi
	echo "$found"
	;;
tofu)
	version=$(pinned tofu github.com/opentofu/opentofu)
	minor=${version%.*}
	if found=$(command -v tofu) && TF_CLI_CONFIG_FILE=/dev/null tofu version 2>/dev/null | grep -q "^OpenTofu v$minor\."; then
		echo "$found"
	else
		build tofu "$version" github.com/opentofu/opentofu/cmd/tofu "-X github.com/opentofu/opentofu/version.dev=no"
	fi
	;;
kubectl)
	version=$(pinned kubectl k8s.io/kubectl)
	build kubectl "1.${version#0.}" . "-X k8s.io/component-base/version.gitVersion=v1.${version#0.}"
	;;
golangci-lint)
	build golangci-lint "$(pinned golangci-lint github.com/golangci/golangci-lint/v2)" github.com/golangci/golangci-lint/v2/cmd/golangci-lint ""
	;;
*)
	echo "usage: tools/need.sh tofu|kubectl|golangci-lint|postgres" >&2
	exit 2
	;;
esac
