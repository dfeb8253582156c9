package cli

import (
	"bytes"
	"encoding/json"
	"time"

	"sigs.k8s.io/yaml"

	"freehold.dev/freehold/client"
)

// document is a resource as files hold it.
type document struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Metadata   documentMetadata `json:"metadata"`
	Spec       json.RawMessage  `json:"spec,omitempty"`
	Status     json.RawMessage  `json:"status,omitempty"`
}

type documentMetadata struct {
	Name              string            `json:"name"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   int64             `json:"resourceVersion,omitempty"`
	Generation        int64             `json:"generation,omitempty"`
	CreatedAt         time.Time         `json:"createdAt,omitzero"`
	UpdatedAt         time.Time         `json:"updatedAt,omitzero"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp,omitempty"`
	Finalizers        []string          `json:"finalizers,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

type documentList struct {
	APIVersion string              `json:"apiVersion"`
	Kind       string              `json:"kind"`
	Metadata   client.ListMetadata `json:"metadata"`
	Items      []document          `json:"items"`
}

func documentOf(k *kind, o *client.Object) document {
	return document{
		APIVersion: apiVersion, Kind: string(k.Kind), Metadata: documentMetadata(o.Metadata),
		Spec: present(o.Spec), Status: present(o.Status),
	}
}

func present(section json.RawMessage) json.RawMessage {
	if string(section) == "null" {
		return nil
	}
	return section
}

func toJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

func toYAML(v any) ([]byte, error) { return yaml.Marshal(v) }
