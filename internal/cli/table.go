package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"freehold.dev/freehold/client"
)

// tableOf tells how a kind is shown: the columns, those that -o wide adds, and one resource's cells for both.
type tableOf struct {
	header, wide []string
	cells        func(o *client.Object, now time.Time) (cells, wide []string, err error)
}

// table prints rows in columns that are as wide as their cells. It may print rows later than others, which then
// keep to the columns.
type table struct {
	w      io.Writer
	rows   [][]string
	widths []int
}

func (t *table) add(cells ...string) {
	for i, c := range cells {
		if cells[i] = strings.Join(strings.Fields(c), " "); c == "" {
			cells[i] = "-"
		}
	}
	t.rows = append(t.rows, cells)
}

// roomFor are the widths of columns whose cells change under the eyes of a watcher.
var roomFor = map[string]int{"EVENT": 8, "STAGE": 12, "PHASE": 9, "ROLE": 12, "READY": 5, "TENANT": 6, "AGE": 5}

// reserve keeps the columns of these headers from moving.
func (t *table) reserve(headers []string) {
	for _, h := range headers {
		t.widths = append(t.widths, roomFor[h])
	}
}

// flush prints the rows that were added since the last time.
func (t *table) flush() error {
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		for i, c := range row {
			b.WriteString(c)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(c)+3))
			}
		}
		b.WriteByte('\n')
	}
	t.rows = nil
	_, err := io.WriteString(t.w, b.String())
	return err
}

// age is a duration as short as kubectl's: 12s, 5m30s, 3h, 4d.
func age(d time.Duration) string {
	d = max(d, 0)
	s := int(d.Seconds())
	switch {
	case s < 120:
		return fmt.Sprintf("%ds", s)
	case s < 600 && s%60 != 0:
		return fmt.Sprintf("%dm%ds", s/60, s%60)
	case s < 3*3600:
		return fmt.Sprintf("%dm", s/60)
	case s < 8*3600 && s/60%60 != 0:
		return fmt.Sprintf("%dh%dm", s/3600, s/60%60)
	case s < 48*3600:
		return fmt.Sprintf("%dh", s/3600)
	case s < 365*2*86400:
		return fmt.Sprintf("%dd", s/86400)
	default:
		return fmt.Sprintf("%dy", s/86400/365)
	}
}

func since(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return age(now.Sub(t))
}

// seconds is a duration with the precision a watcher wants: 0.4s, 12s, 3m07s.
func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Truncate(time.Second).Seconds())
	default:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
}
