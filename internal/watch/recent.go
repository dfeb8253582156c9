package watch

import (
	"github.com/danielgtaylor/huma/v2"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// recentRevisions is how far back the recent changes reach.
	recentRevisions = 1000
	// recentEvents is the most that is answered; the newest are.
	recentEvents = 500
)

// recent answers the latest changes of a scope as a list, oldest first.
func recent(sc Scope, batches []store.Batch, current int64) (*rest.Stream, error) {
	var events []store.Event
	for _, b := range batches {
		events = append(events, sc.kept(b.Events)...)
	}
	events = events[max(0, len(events)-recentEvents):]
	list := client.List[client.Event[any]]{Items: make([]client.Event[any], len(events)), Total: len(events)}
	list.Metadata.ResourceVersion = current
	for i, e := range events {
		var err error
		if list.Items[i], err = sc.event(e); err != nil {
			return nil, err
		}
	}
	data, err := rest.EncodeEvent(list)
	if err != nil {
		return nil, err
	}
	return &rest.Stream{Body: func(hc huma.Context) {
		hc.SetHeader("Content-Type", "application/json")
		_, _ = hc.BodyWriter().Write(append(data, '\n'))
	}}, nil
}
