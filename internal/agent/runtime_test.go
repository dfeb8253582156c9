package agent

import (
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
)

// The poll that took commands over is held up until they are told, but not for a report that nothing calls for.
func TestThePollGoesOnWhenTheReportOnItsWayToldEverything(t *testing.T) {
	core := newWorld(t, openTestStore(t)).core
	c := Config{Network: Network{Request: time.Hour}}
	a := &agent{config: &c, core: core, report: make(chan struct{}, 1), reported: make(chan struct{})}
	onItsWay := core.Report(true, nil)
	a.noteReport(onItsWay.ReportSeq, false)
	told := make(chan struct{})
	go func() { defer close(told); a.afterReport(t.Context()) }()
	<-a.report // it waits now
	core.Reported(onItsWay, agentapi.ReportAnswer{AcceptedSeq: onItsWay.ReportSeq})
	a.noteReport(onItsWay.ReportSeq, true)
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Error("the poll waits for a report that nobody will make")
	}
}
