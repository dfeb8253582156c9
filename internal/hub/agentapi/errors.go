package agentapi

import (
	"errors"
	"net/http"
	"time"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

// problem maps the refusals of the domain. Those of the store are mapped by the kernel.
func (s *service) problem(err error) *rest.Problem {
	var (
		stale   *hub.StaleReportError
		missing *hub.NotFoundError
		invalid *hub.ValidationError
	)
	switch {
	case errors.As(err, &stale):
		return refused(http.StatusConflict, protocol.CodeStaleReport, stale.Error(),
			protocol.Cursor{BootSeq: stale.Cursor.Boot.Seq, ReportSeq: stale.Cursor.ReportSeq})
	case errors.Is(err, hub.ErrFullReportRequired):
		return refused(http.StatusConflict, protocol.CodeFullReportRequired, err.Error(), nil)
	case errors.Is(err, hub.ErrEnrolment):
		return refused(http.StatusForbidden, protocol.CodeEnrolmentRefused, err.Error(), nil)
	case errors.Is(err, hub.ErrNodeDeleting):
		return refused(http.StatusConflict, problem.CodeNodeDeleting, err.Error(), nil)
	case errors.Is(err, hub.ErrNotEnrolled):
		return refused(http.StatusUnauthorized, protocol.CodeNotEnrolled, err.Error(), nil)
	case errors.Is(err, hub.ErrSessionSuperseded):
		return refused(http.StatusConflict, protocol.CodeSessionSuperseded, err.Error(), nil)
	case errors.Is(err, hub.ErrIdentityConflict):
		return refused(http.StatusConflict, protocol.CodeIdentityConflict, err.Error(), nil)
	case errors.As(err, &missing):
		return refused(http.StatusNotFound, problem.CodeNotFound, missing.Error(), nil)
	case errors.As(err, &invalid):
		causes := make([]rest.Cause, len(invalid.Fields))
		for i, f := range invalid.Fields {
			causes[i] = rest.Cause{Field: f.Field, Message: f.Message}
		}
		return problem.Invalid(causes...)
	case errors.Is(err, store.ErrConflict):
		// Another request of the same node came between; the agent asks again.
		p := rest.Unavailable("the node's record was changed at the same time: try again")
		p.Header = http.Header{"Retry-After": {"1"}}
		return p
	}
	return nil
}

func tooMany(after time.Duration) *rest.Problem {
	return rest.TooMany(after, "too many failed attempts from this address: try again later")
}
