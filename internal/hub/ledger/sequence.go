package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"freehold.dev/freehold/internal/kernel/store"
)

// The sequences.
const (
	sequenceIntent = "hub/sequence/intent"
	sequenceConfig = "hub/sequence/config"
)

// nextOf answers the next number of a sequence. They start at 1.
func nextOf(tx store.Tx, sequence string) (int64, error) {
	stored, err := tx.Blob(sequence)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, err
	}
	var last int64
	if err == nil {
		if last, err = strconv.ParseInt(string(stored), 10, 64); err != nil {
			return 0, fmt.Errorf("sequence %s: %w", sequence, err)
		}
	}
	last++
	return last, tx.PutBlob(sequence, strconv.AppendInt(nil, last, 10))
}

func intentID(generation, sequence int64) string {
	return "intent-" + strconv.FormatInt(generation, 10) + "-" + strconv.FormatInt(sequence, 10)
}

// attemptID of an intent: attempts of a hub that was restored from a backup must not be taken for others that had their
// number, so it ends in a random word.
func attemptID(intent, random string) string {
	return "attempt-" + strings.TrimPrefix(intent, "intent-") + "-" + random
}

// intentOf answers the intent that an attempt belongs to, "" when it is no attempt's id.
func intentOf(attempt string) string {
	rest, ok := strings.CutPrefix(attempt, "attempt-")
	end := strings.LastIndexByte(rest, '-')
	if !ok || end < 0 {
		return ""
	}
	return "intent-" + rest[:end]
}
