// Package api serves the Hub plane to operators: nodes, their streams, operations and config versions. It translates;
// the rules are in package hub, the records in package ledger.
package api
