// Package hub is the domain of streams on nodes: what was declared (desired), what a node reported (observed), and the
// comparison of the two (convergence), with the state machines of intents and attempts between them.
//
// Everything here is pure: it looks at values and a clock reading, and does no I/O. Package ledger keeps the records.
package hub
