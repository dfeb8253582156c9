package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// contentKey names a content in the node's cache. The digest is the proof; a hub that was restored from a backup may
// give a version's name to another content.
type contentKey struct{ version, digest string }

func (t *Target) content() contentKey { return contentKey{t.ConfigVersion, t.Digest} }

const contentPrefix = "agent/config/"

func (k contentKey) blob() string { return contentPrefix + k.digest + "/" + k.version }

// spareContents are kept beside those that records name, for a return to an earlier version.
const spareContents = 32

// fetch is a content that is asked for.
type fetch struct {
	asked    bool
	failures int
	retryAt  time.Time
}

// digestOf is how a content's digest is written.
func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// loadContents reads what the cache has, and leaves out what is damaged.
func loadContents(r store.Reader) (map[contentKey]hub.Engine, error) {
	blobs, err := r.Blobs(contentPrefix)
	if err != nil {
		return nil, err
	}
	out := map[contentKey]hub.Engine{}
	for _, b := range blobs {
		digest, version, found := strings.Cut(strings.TrimPrefix(b.Name, contentPrefix), "/")
		if !found {
			continue
		}
		key := contentKey{version, digest}
		content, err := readContent(r, key)
		if err != nil {
			continue // it is fetched again when it is wanted
		}
		out[key] = content.Engine
	}
	return out, nil
}

func readContent(r store.Reader, key contentKey) (*agentapi.ConfigContent, error) {
	raw, err := r.Blob(key.blob())
	if err != nil {
		return nil, err
	}
	content := &agentapi.ConfigContent{}
	if err := json.Unmarshal(raw, content); err != nil {
		return nil, err
	}
	if digestOf(content.Content) != key.digest {
		return nil, fmt.Errorf("the content of %s in the node's cache is damaged", key.version)
	}
	return content, nil
}

// Fetched answers an [EffectFetch]. A content that is not what its digest says is refused.
func (c *Core) Fetched(ctx context.Context, version, digest string, content *agentapi.ConfigContent, why *hub.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := contentKey{version, digest}
	f := c.fetches[key]
	if f == nil {
		return
	}
	f.asked = false
	if why == nil && content == nil {
		why = failure(hub.Transient, "config_unavailable", "the hub did not answer the content of "+version)
	}
	if why == nil && digestOf(content.Content) != digest {
		why = failure(hub.Permanent, "digest_mismatch", "the content of "+version+" is not what its digest says")
	}
	if why == nil {
		if err := c.keep(ctx, key, content); err != nil {
			why = storeFailure(err)
		}
	}
	waits := func(s *stream) bool {
		want := s.rec.wanted()
		return want != nil && want.State == hub.Running && want.content() == key
	}
	if why == nil {
		delete(c.fetches, key)
		for _, s := range c.streams {
			if waits(s) {
				s.last = nil
			}
		}
		return
	}
	f.retryAt = c.config.Now().Add(c.backoff(f.failures, c.timing.FetchMin, c.timing.FetchMax))
	f.failures++
	for _, s := range c.streams {
		if waits(s) {
			c.fetchFailed(s, why, f.failures)
		}
	}
	_ = c.save(ctx) // what could not be stored stays to be stored
}

// patientFetches is how many times a content may be out of reach before an attempt fails for it.
const patientFetches = 3

func (c *Core) fetchFailed(s *stream, why *hub.Failure, failures int) {
	if hopeless(why.Class) && s.rec.Failure == nil {
		c.failed(s, why, s.rec.Target, true)
		return
	}
	s.last = why
	if failures >= patientFetches {
		s.closeAttempt(why)
	}
}

func storeFailure(err error) *hub.Failure {
	if errors.Is(err, store.ErrFull) {
		return failure(hub.Capacity, "disk_full", "the node's disk is full: nothing new is taken over before there is room")
	}
	return failure(hub.Transient, "store_failed", "the node could not store it: "+err.Error())
}

// keep stores a content, and forgets those that nothing names any more.
func (c *Core) keep(ctx context.Context, key contentKey, content *agentapi.ConfigContent) error {
	raw, err := json.Marshal(agentapi.ConfigContent{ConfigVersion: key.version, Engine: content.Engine, Digest: key.digest, Content: content.Content})
	if err != nil {
		return err
	}
	used := c.usedContents()
	used[key] = true
	var gone []contentKey
	err = c.config.Store.Update(ctx, func(tx store.Tx) error {
		if err := tx.PutBlob(key.blob(), raw); err != nil {
			return err
		}
		var err error
		gone, err = forgetContents(tx, used)
		return err
	})
	if err != nil {
		c.storeErr = err
		return err
	}
	c.storeErr = nil
	c.contents[key] = content.Engine
	for _, k := range gone {
		delete(c.contents, k)
	}
	return nil
}

func (c *Core) usedContents() map[contentKey]bool {
	used := map[contentKey]bool{}
	for _, s := range c.streams {
		for _, r := range []*Record{&s.rec, &s.saved} {
			used[r.Target.content()] = true
			if r.Applied != nil {
				used[r.Applied.content()] = true
			}
		}
	}
	return used
}

func forgetContents(tx store.Tx, used map[contentKey]bool) (gone []contentKey, err error) {
	blobs, err := tx.Blobs(contentPrefix)
	if err != nil {
		return nil, err
	}
	blobs = slices.DeleteFunc(blobs, func(b store.BlobInfo) bool { return used[keyOfBlob(b.Name)] })
	slices.SortFunc(blobs, func(a, b store.BlobInfo) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.Name, b.Name))
	})
	for _, b := range blobs[min(len(blobs), spareContents):] {
		if err := tx.DeleteBlob(b.Name); err != nil {
			return nil, err
		}
		gone = append(gone, keyOfBlob(b.Name))
	}
	return gone, nil
}

func keyOfBlob(name string) contentKey {
	digest, version, _ := strings.Cut(strings.TrimPrefix(name, contentPrefix), "/")
	return contentKey{version, digest}
}
