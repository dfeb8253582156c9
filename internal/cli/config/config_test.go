package config

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestSavedContextIsCurrentAndPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "config.yaml")
	want := Context{Name: "local", Server: "http://127.0.0.1:8080", User: "admin", Token: "t"}
	if err := Save(path, want); err != nil {
		t.Fatal(err)
	}
	if err := Save(path, Context{Name: "other", Server: "https://other"}); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := c.Get("local"); !ok || got != want {
		t.Fatalf("%+v", got)
	}
	if got, _ := c.Get(""); got.Name != "other" {
		t.Fatalf("current: %+v", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	if !c.Delete("other") || c.CurrentContext != "" || c.Delete("other") {
		t.Fatal("delete")
	}
}

func TestConcurrentEditsAllCount(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := Save(path, Context{Name: fmt.Sprint(i), Server: "http://h"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	c, err := Load(path)
	if err != nil || len(c.Contexts) != 20 {
		t.Fatalf("%d contexts, %v", len(c.Contexts), err)
	}
}

func TestDamagedFileIsToldAndKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("contexts: {"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil {
		t.Fatal("no error")
	}
	if err := Save(path, Context{Name: "x"}); err == nil {
		t.Fatal("a damaged file was overwritten")
	}
	if data, _ := os.ReadFile(path); string(data) != "contexts: {" {
		t.Fatal("changed")
	}
}

func TestPathHonoursXDG(t *testing.T) {
	env := map[string]string{"XDG_CONFIG_HOME": "/x", "HOME": "/h"}
	get := func(k string) string { return env[k] }
	if p, _ := Path(get); p != "/x/freehold/config.yaml" {
		t.Fatal(p)
	}
	delete(env, "XDG_CONFIG_HOME")
	if p, _ := Path(get); p != "/h/.config/freehold/config.yaml" {
		t.Fatal(p)
	}
}
