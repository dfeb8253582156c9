package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/idempotency"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/watch"
)

const (
	nodesPath      = "/api/v1/nodes"
	nodePath       = nodesPath + "/{node_id}"
	streamsPath    = nodePath + "/streams"
	streamPath     = streamsPath + "/{stream_id}"
	operationsPath = "/api/v1/operations"
	configsPath    = "/api/v1/config-versions"
	allStreamsPath = "/api/v1/streams"
	eventsPath     = allStreamsPath + "/events"
)

// validateID is the operation that is posted and changes nothing.
const validateID = "validate-config-version"

// Caller is who makes a request.
type Caller struct {
	User  string
	Admin bool
}

// Config of the Hub's operator API. All fields are needed, but for those with a default.
type Config struct {
	Store  store.Store
	Ledger *ledger.Ledger
	Linter Linter
	Live   Live
	// Sealer encrypts the answers that are kept for retries: some hold a token.
	Sealer idempotency.Sealer
	// Caller finds the caller in the context of an authenticated request.
	Caller func(context.Context) Caller
	// Now is the clock (default time.Now).
	Now func() time.Time
	// Limit bounds the mutations of one principal.
	Limit Limit
}

// Configure makes the configuration of the [rest.API] that this API is registered on: its paths, its envelope, its
// correlation header, its errors. Record is told of refused mutations ([audit.Recorder.Record]).
func Configure(c rest.Config, record func(audit.Entry)) rest.Config {
	c.Prefixes = []string{nodesPath, allStreamsPath, operationsPath, configsPath}
	c.CorrelationHeader, c.Envelope, c.Problem = problem.CorrelationHeader, problem.Envelope, problem.Of
	c.Refused = func(r rest.Refusal) {
		if r.Operation.ID != validateID {
			record(refusal(r))
		}
	}
	return c
}

// refusal is the audit entry of a mutation that was refused.
func refusal(r rest.Refusal) audit.Entry {
	e := audit.Entry{
		Principal: r.Caller, CorrelationID: r.RequestID, Action: r.Operation.ID, Outcome: audit.Rejected,
		Address: audit.Address(r.Request.RemoteAddr), Code: problem.Code(r.Problem),
	}
	node, stream := r.Request.PathValue("node_id"), r.Request.PathValue("stream_id")
	switch {
	case stream != "":
		e.Kind, e.Name = kindStream, hub.StreamName(node, stream)
	case strings.HasPrefix(r.Operation.Path, nodePath+"/config/"):
		e.Kind, e.Name = kindStream, hub.StreamName(node, hub.NodeConfig)
	case strings.HasPrefix(r.Operation.Path, nodesPath):
		e.Kind, e.Name = kindNode, node
	case strings.HasPrefix(r.Operation.Path, operationsPath):
		e.Kind, e.Name = kindOperation, r.Request.PathValue("intent_id")
	default:
		e.Kind = kindConfig
	}
	return e
}

// Kinds of what is audited.
const (
	kindNode      = "node"
	kindStream    = "stream"
	kindOperation = "operation"
	kindConfig    = "config-version"
)

type service struct {
	Config
	limiter *limiter
	records idempotency.Records
	watches *watch.Server
}

// Register adds the Hub's operations to an API that was configured with [Configure].
func Register(a *rest.API, config Config) {
	if config.Now == nil {
		config.Now = time.Now
	}
	s := &service{
		Config: config, limiter: newLimiter(config.Limit, config.Now), records: idempotency.Records{Sealer: config.Sealer},
		watches: watch.NewServer(config.Store),
	}
	s.registerNodes(a)
	s.registerStreams(a)
	s.registerAdapters(a)
	s.registerLive(a)
	s.registerEvents(a)
	s.registerOperations(a)
	s.registerConfigs(a)
}

// op makes operations with one tag.
type op string

func (tag op) get(path, id, summary string) rest.Operation {
	return rest.Operation{Method: http.MethodGet, Path: path, ID: id, Access: rest.View, Summary: summary, Tags: []string{string(tag)}}
}

func (tag op) write(method, path, id string, status int, summary, description string) rest.Operation {
	return rest.Operation{
		Method: method, Path: path, ID: id, Access: rest.Edit, Summary: summary, Description: description,
		Tags: []string{string(tag)}, Status: status,
	}
}

// NodePath names the node.
type NodePath struct {
	Node string `path:"node_id" doc:"The node's id."`
}

// StreamPath names the stream.
type StreamPath struct {
	NodePath
	Stream string `path:"stream_id" doc:"The stream's id."`
}

// Empty is a body that says nothing.
type Empty struct{}
