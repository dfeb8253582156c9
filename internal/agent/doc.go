// Package agent keeps the streams of one node true: it takes generations over from the hub, runs them with its
// engines, and tells what is.
//
// [Core] is the node's local truth, a state machine on a store without goroutines. [Run] is the program around it: the
// connection to the hub, the engines, the logs. What was accepted goes on with the hub gone, and after a reboot.
package agent
