package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"pghandoff/proxy/config"
)

// Proves that every configuration in the recipes for managed databases is valid.
func TestRecipesForManagedDatabasesAreValid(t *testing.T) {
	files, err := filepath.Glob("../docs/managed/*.md")
	if err != nil || len(files) < 7 {
		t.Fatalf("%v, %v", files, err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	index, err := os.ReadFile("../docs/managed/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := blocks.FindAllStringSubmatch(string(text), -1)
		for _, b := range found {
			c, err := config.Parse([]byte(b[1]))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, r := range c.Routes {
				if len(r.Allow) == 0 || r.TLS.Mode != "verify-full" && r.TLS.Mode != "verify-ca" {
					t.Errorf("%s: a recipe that lets nobody in, or does not verify the server: %+v", name, r.TLS)
				}
			}
		}
		if name != "README.md" && (len(found) == 0 || !regexp.MustCompile(regexp.QuoteMeta("]("+name+")")).Match(index)) {
			t.Errorf("%s has %d recipes, or the index does not name it", name, len(found))
		}
		if name != "README.md" && !regexp.MustCompile(`(?m)^Client certificates: `).Match(text) {
			t.Errorf("%s does not say plainly whether client certificates exist there", name)
		}
	}
}
