package agentapi

import (
	"context"
	"net/http"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/ledger"
	"freehold.dev/freehold/internal/hub/presence"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

type reportInput struct{ Body protocol.Report }
type reportOutput struct{ Body protocol.ReportAnswer }

// maxReportBody is some 10,000 streams.
const maxReportBody = 4 << 20

func (s *service) registerReports() {
	rest.Register(s.api, rest.Operation{
		Method: http.MethodPost, Path: Prefix + "/reports", ID: "report", Access: rest.Edit, MaxBody: maxReportBody,
		Summary: "Tell what the node observes, and what became of its commands", Tags: []string{"Reports"}, Routine: true,
	}, s.report)
}

// report takes over what is new. A report that says nothing new takes no transaction: its cursor and counters are
// remembered, and that is all.
func (s *service) report(ctx context.Context, in *reportInput) (*reportOutput, error) {
	b, c := &in.Body, sessionOf(ctx)
	if err := validateReport(b); err != nil {
		return nil, err
	}
	if b.BootID != c.BootID || b.BootSeq != c.BootSeq {
		var f faults
		f.add("boot_id", "is not the boot that the session was made for")
		return nil, f.err()
	}
	if err := s.admit(ctx); err != nil {
		return nil, err
	}
	p := s.Presence.Reporting(c.Subject, c.NodeUID)
	defer p.Close()
	out, err := s.take(ctx, p, b)
	s.metrics.report(out.Changed, err)
	if err != nil {
		return nil, err
	}
	p.Accept(b)
	if out.Wake {
		s.Presence.Wake(c.Subject)
	}
	return &reportOutput{Body: protocol.ReportAnswer{
		AcceptedSeq: b.ReportSeq, FullRequired: s.Presence.AskFull(c.Subject, c.NodeUID, out.FullRequired),
	}}, nil
}

func (s *service) take(ctx context.Context, p *presence.Reporting, b *protocol.Report) (out ledger.Outcome, err error) {
	cursor := protocol.Cursor{BootSeq: b.BootSeq, ReportSeq: b.ReportSeq}
	if p.Known && !p.Cursor.Before(cursor) {
		// It says so only to whom the session still belongs.
		return out, s.view(ctx, func(_ store.Reader, n *hub.Node) error {
			return &hub.StaleReportError{Cursor: hub.Cursor{Boot: n.Status.Boot, ReportSeq: p.Cursor.ReportSeq}}
		})
	}
	// What became of a command is new. Only full reports, and those of streams, may say again what is known. After a
	// report that is missing the cursor is stored: should it arrive when this server has been restarted, it is old.
	missing := p.Known && p.Cursor.BootSeq == b.BootSeq && b.ReportSeq > p.Cursor.ReportSeq+1
	if !missing && (len(b.Attempts) == 0 || b.Full) {
		changes := false
		err = s.view(ctx, func(r store.Reader, n *hub.Node) (err error) {
			changes, out.FullRequired, err = s.Ledger.ReportChanges(r, n.Name, b)
			return err
		})
		if err != nil || !changes {
			return out, err
		}
	}
	err = s.update(ctx, func(tx store.Tx, n *hub.Node) (err error) {
		out, err = s.Ledger.Report(tx, n.Name, b)
		return err
	})
	return out, err
}
