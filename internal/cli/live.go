package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// live is an area at the end of a terminal that is drawn again and again, with lines that scroll by above it. On
// anything else it has no area, and only lines.
type live struct {
	w     io.Writer
	width int // 0: not a terminal
	color bool
	drawn int
}

func newLive(w io.Writer, getenv func(string) string) *live {
	l := &live{w: w}
	if width, ok := terminal(w); ok && getenv("TERM") != "dumb" {
		l.width, l.color = width, getenv("NO_COLOR") == ""
	}
	return l
}

func (l *live) isTerminal() bool { return l.width > 0 }

// say prints a line for good.
func (l *live) say(line string) {
	_, _ = io.WriteString(l.w, l.erase()+line+"\n")
}

// draw replaces the area.
func (l *live) draw(lines []string) {
	if !l.isTerminal() {
		return
	}
	if width, ok := terminal(l.w); ok {
		l.width = width
	}
	var b strings.Builder
	b.WriteString(l.erase())
	for _, line := range lines {
		b.WriteString(clip(line, l.width-1))
		b.WriteByte('\n')
	}
	l.drawn = len(lines)
	_, _ = io.WriteString(l.w, b.String())
}

// keep leaves the area as it is and goes on below it.
func (l *live) keep() { l.drawn = 0 }

func (l *live) erase() string {
	if l.drawn == 0 {
		return ""
	}
	n := l.drawn
	l.drawn = 0
	return fmt.Sprintf("\x1b[%dA\x1b[J", n)
}

const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func (l *live) paint(style, s string) string {
	if !l.color || s == "" {
		return s
	}
	return "\x1b[" + style + "m" + s + "\x1b[0m"
}

// clip cuts a line at a number of columns. Escape sequences take none.
func clip(line string, columns int) string {
	var b strings.Builder
	n := 0
	for len(line) > 0 {
		if strings.HasPrefix(line, "\x1b[") {
			if end := strings.IndexByte(line, 'm'); end > 0 {
				b.WriteString(line[:end+1])
				line = line[end+1:]
				continue
			}
		}
		r, size := utf8.DecodeRuneInString(line)
		if n++; n <= columns {
			b.WriteRune(r)
		}
		line = line[size:]
	}
	return b.String()
}

// pad fills a text up to a number of columns.
func pad(s string, columns int) string {
	if n := utf8.RuneCountInString(s); n < columns {
		return s + strings.Repeat(" ", columns-n)
	}
	return s
}
