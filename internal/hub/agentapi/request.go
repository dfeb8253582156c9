package agentapi

import (
	"context"
	"net/http"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type answerInput struct {
	ID   string `path:"request_id" doc:"The request's id, from the poll's answer."`
	Body protocol.LogAnswer
}

// Bounds of an answer.
const (
	maxAnswerBody = 4 << 20
	maxLines      = 10_000
)

func (s *service) registerRequests() {
	rest.Register(s.api, rest.Operation{
		Method: http.MethodPost, Path: Prefix + "/requests/{request_id}", ID: "answer-request", Access: rest.Edit, MaxBody: maxAnswerBody,
		Summary: "Answer what the node was asked", Tags: []string{"Commands"}, Routine: true,
	}, s.answer)
}

func (s *service) answer(ctx context.Context, in *answerInput) (*struct{}, error) {
	if len(in.Body.Lines) > maxLines {
		var f faults
		f.add("lines", "must not be more than %d", maxLines)
		return nil, f.err()
	}
	if in.Body.Next < 0 {
		var f faults
		f.add("next", "must not be negative")
		return nil, f.err()
	}
	if err := s.view(ctx, func(store.Reader, *hub.Node) error { return nil }); err != nil {
		return nil, err
	}
	c := sessionOf(ctx)
	if !s.Presence.Answer(c.Subject, c.NodeUID, in.ID, in.Body) {
		return nil, rest.NotFound("nobody waits for an answer to request %q any more", in.ID)
	}
	return nil, nil
}
