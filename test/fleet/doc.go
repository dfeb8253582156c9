// Package fleet simulates the agents of many nodes against a real server: one process, the real protocol over TLS and
// HTTP/2, a connection for each node, and what an agent keeps on its disk kept in memory. What a stream does is left out.
//
// It is for tests and benchmarks.
package fleet
