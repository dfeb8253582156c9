package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// claimConfig is the unique key of a content for an engine; its owner is the config version.
const claimConfig = "hub/config"

// PublishConfig stores content for an engine, and answers the version; the same content again answers the same one, created
// false. The content was linted by the caller. Errors: [hub.ValidationError].
func (l *Ledger) PublishConfig(tx store.Tx, engine hub.Engine, content, description, principal string) (c *hub.Config, created bool, err error) {
	switch engine {
	case hub.EngineBenthos, hub.EngineProcess, hub.EngineNode:
	default:
		return nil, false, hub.Invalid("engine", "must be benthos, process or node")
	}
	if len(content) > hub.MaxConfig {
		return nil, false, hub.Invalid("content", "must not be larger than %d bytes", hub.MaxConfig)
	}
	digest := digestOfContent(content)
	key := string(engine) + "/" + digest
	switch version, err := tx.Claimed(claimConfig, key); {
	case err == nil:
		c, err = hub.Configs.Get(tx, version)
		return c, false, err
	case !errors.Is(err, store.ErrNotFound):
		return nil, false, err
	}
	n, err := nextOf(tx, sequenceConfig)
	if err != nil {
		return nil, false, err
	}
	c = &hub.Config{}
	c.Name = "cfg-" + strconv.FormatInt(n, 10)
	c.Labels = map[string]string{hub.LabelEngine: string(engine)}
	c.Spec = hub.ConfigSpec{Engine: engine, Digest: digest, Size: len(content), Description: description, Principal: principal}
	if err := tx.Claim(claimConfig, key, c.Name); err != nil {
		return nil, false, err
	}
	if err := tx.PutBlob(hub.ConfigBlob(digest), []byte(content)); err != nil {
		return nil, false, err
	}
	return c, true, hub.Configs.Create(tx, c)
}

func digestOfContent(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ConfigContent answers a config version with its content, verified. Errors: [hub.NotFoundError].
func (l *Ledger) ConfigContent(r store.Reader, version string) (*hub.Config, string, error) {
	c, err := hub.Configs.Get(r, version)
	if errors.Is(err, store.ErrNotFound) {
		return nil, "", &hub.NotFoundError{Kind: "config version", ID: version}
	}
	if err != nil {
		return nil, "", err
	}
	content, err := r.Blob(hub.ConfigBlob(c.Spec.Digest))
	if err != nil {
		return nil, "", err
	}
	if digestOfContent(string(content)) != c.Spec.Digest {
		return nil, "", fmt.Errorf("the stored content of %s is damaged: its digest is not %s", version, c.Spec.Digest)
	}
	return c, string(content), nil
}
