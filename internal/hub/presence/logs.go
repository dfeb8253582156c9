package presence

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/api"
	"freehold.dev/freehold/internal/kernel/rest"
)

const (
	// RequestLogs is the kind of questions for a stream's log.
	RequestLogs = "logs"
	// answerTimeout is how long a node has to answer, beside what it is asked to wait.
	answerTimeout = 10 * time.Second
	// maxQuestions of one node that are not answered.
	maxQuestions = 32
)

// question is something that only the node can tell.
type question struct {
	node    *node
	request agentapi.Request
	answer  chan agentapi.LogAnswer
}

// Logs asks the node for a part of a stream's log. It implements [api.Live].
func (r *Registry) Logs(ctx context.Context, name, stream string, q api.LogQuery) (agentapi.LogAnswer, error) {
	ask, err := r.ask(name, agentapi.Request{
		RequestID: rand.Text(), Kind: RequestLogs, StreamID: stream,
		After: q.After, Limit: q.Limit, WaitMS: q.Wait.Milliseconds(),
	})
	if err != nil {
		return agentapi.LogAnswer{}, err
	}
	defer r.giveUp(ask)
	timeout := time.NewTimer(answerTimeout + q.Wait)
	defer timeout.Stop()
	select {
	case a := <-ask.answer:
		if a.Error != "" {
			return agentapi.LogAnswer{}, api.ErrNoLog
		}
		return a, nil
	case <-timeout.C:
		return agentapi.LogAnswer{}, api.ErrNodeUnavailable
	case <-ctx.Done():
		return agentapi.LogAnswer{}, context.Cause(ctx)
	}
}

// ask hands a question to the node's poll. A node that neither holds one nor did lately is not there to be asked.
func (r *Registry) ask(name string, request agentapi.Request) (*question, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[name]
	if n == nil || n.poll == nil && r.now().Sub(n.polled) >= hub.OfflineAfter {
		return nil, api.ErrNodeUnavailable
	}
	waiting := 0
	for _, q := range r.questions {
		if q.node == n {
			waiting++
		}
	}
	if waiting >= maxQuestions {
		return nil, rest.TooMany(time.Second, "%d requests wait for node %q already; try again", waiting, name)
	}
	q := &question{node: n, request: request, answer: make(chan agentapi.LogAnswer, 1)}
	r.questions[request.RequestID] = q
	n.questions = append(n.questions, q)
	if n.poll != nil {
		n.poll.signal()
	}
	return q, nil
}

func (r *Registry) giveUp(q *question) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.questions, q.request.RequestID)
	q.node.questions = slices.DeleteFunc(q.node.questions, func(o *question) bool { return o == q })
}

// Answer gives a node's answer to who asked; false when nobody of this node's askers waits for it.
func (r *Registry) Answer(name, uid, requestID string, a agentapi.LogAnswer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.questions[requestID]
	if q == nil || q.node != r.nodes[name] || q.node.uid != uid {
		return false
	}
	delete(r.questions, requestID)
	q.answer <- a
	return true
}
