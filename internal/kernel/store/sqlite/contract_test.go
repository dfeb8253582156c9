package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
	"freehold.dev/freehold/internal/kernel/store/storetest"
)

func backend(o sqlite.Options) storetest.Backend {
	return storetest.Backend{
		Open: func(ctx context.Context, folder string, kinds []store.Kind) (store.Store, error) {
			o := o
			o.Kinds = kinds
			return sqlite.Open(ctx, filepath.Join(folder, "store.db"), o)
		},
	}
}

func TestContract(t *testing.T) { storetest.Run(t, backend(sqlite.Options{})) }

// With next to nothing in memory, watchers read the log table.
func TestWatchesOfTheLogTable(t *testing.T) {
	storetest.RunWatches(t, backend(sqlite.Options{RecentBytes: 1}))
}
