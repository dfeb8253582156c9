// Package model runs the Hub plane and its agents in a simulated world: the real store, the real HTTP handlers of
// operators and of agents, the real controllers, and the real core of the agent on a store of its own; between them a
// network that loses, doubles, delays and reorders, clocks that jump, processes that die at any write, and engines that
// fail. One thread runs it all, so that a seed repeats a run.
package model

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// tester is a test, or one run of a property.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

var ctx = context.Background()

// epoch is when a world begins.
var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// world is a hub, its nodes, its operators, and what lies between.
type world struct {
	t   tester
	dir string
	// elapsed is the true time since the epoch. Clocks are relative to it.
	elapsed time.Duration
	ids     int

	hub      *hubProcess
	nodes    []*node
	network  network
	operator *operator
	seen     *seen
	// tally counts what was met with, to show that a test meets with it.
	tally map[string]int
}

// newWorld makes a hub with some nodes, which are enrolled.
func newWorld(t tester, dir string, nodes int) *world {
	w := &world{t: t, dir: dir, tally: map[string]int{}}
	w.seen = newSeen()
	w.hub = newHub(w)
	w.operator = newOperator(w)
	w.operator.publishAll()
	for i := range nodes {
		w.nodes = append(w.nodes, newNode(w, "node-"+string(rune('a'+i))))
	}
	return w
}

func (w *world) close() {
	w.hub.close()
	for _, n := range w.nodes {
		n.close()
	}
}

// note adds a line to the history, which is printed when the run fails.
func (w *world) note(format string, args ...any) {
	w.t.Logf("%9s  %s", w.elapsed.Round(time.Millisecond), fmt.Sprintf(format, args...))
}

func (w *world) id(prefix string) string {
	w.ids++
	return prefix + strconv.Itoa(w.ids)
}

// pass lets time go by.
func (w *world) pass(d time.Duration) { w.elapsed += d }

// steady is the time as a clock shows it that is not set while it runs.
func (w *world) steady() time.Time { return epoch.Add(w.elapsed) }
