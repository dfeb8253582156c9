// Package benthos is the engine that runs Benthos pipelines, each in a process of its own ([Host]): a panic, a leak or a
// hung input of one stream stays its own, and the machine's limits apply to it.
//
// The components are the MIT-licensed core's, and the connectors nats_jetstream and postgres of the packages beside.
// A message is acknowledged to its source after its output took it: delivery is at least once, as far as the source
// keeps what was not acknowledged (a broker does; a file is read from its beginning again; an HTTP client gets an error
// and has to repeat).
package benthos
