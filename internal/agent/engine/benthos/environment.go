package benthos

import (
	"slices"
	"sync"

	// The components of the core register themselves.
	_ "github.com/redpanda-data/benthos/v4/public/components/io"
	_ "github.com/redpanda-data/benthos/v4/public/components/pure"

	"github.com/redpanda-data/benthos/v4/public/bloblang"
	"github.com/redpanda-data/benthos/v4/public/service"

	"freehold.dev/freehold/internal/agent/engine/benthos/natsjetstream"
	"freehold.dev/freehold/internal/agent/engine/benthos/postgres"
)

// leftOut are the components that need what a stream does not have: a terminal, and the HTTP server that one process of
// several streams would share.
var leftOut = []string{"stdin", "dynamic"}

// environment has all that streams may use. Mappings cannot import files: what runs is the content and nothing else.
var environment = sync.OnceValues(func() (*service.Environment, error) {
	env := service.NewEnvironment().Without(leftOut...)
	env.UseBloblangEnvironment(bloblang.GlobalEnvironment().WithDisabledImports())
	for _, register := range []func(*service.Environment) error{natsjetstream.Register, postgres.Register} {
		if err := register(env); err != nil {
			return nil, err
		}
	}
	return env, nil
})

// Variables of the environment that a content can refer to as ${NAME}. FREEHOLD_STREAM is the stream's id.
func variable(name string) bool {
	return slices.Contains([]string{"FREEHOLD_STREAM", "FREEHOLD_NODE", "HOME", "TMPDIR", "TZ", "USER"}, name)
}
