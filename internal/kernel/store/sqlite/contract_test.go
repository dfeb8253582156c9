package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
	"freehold.dev/freehold/internal/kernel/store/storetest"
)

func TestContract(t *testing.T) {
	for name, recent := range map[string]int{
		"Default": 0,
		// Watchers find next to nothing in memory and read the log table.
		"LittleMemory": 1,
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Backend{
				Open: func(ctx context.Context, folder string, kinds []store.Kind) (store.Store, error) {
					return sqlite.Open(ctx, filepath.Join(folder, "store.db"), sqlite.Options{Kinds: kinds, RecentBytes: recent})
				},
			})
		})
	}
}
