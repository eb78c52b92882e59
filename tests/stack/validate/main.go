// Command validate reads files of collector-config/ that no program here can run, each by the code of those it is for:
// a compose file by the loader behind `docker compose`, a dashboard by Grafana's own typed model, strictly.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func compose(paths ...string) error {
	options, err := cli.NewProjectOptions(paths, cli.WithOsEnv, cli.WithProfiles([]string{"*"}))
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	out, err := project.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = fmt.Println(string(out))
	return err
}

func grafana(paths ...string) error {
	raw, err := os.ReadFile(paths[0])
	if err != nil {
		return err
	}
	plugins.RegisterDefaultPlugins() // or panels and queries of plugins are not looked into
	var board dashboard.Dashboard
	// Without a fault it returns an empty list of faults, which is not a nil error.
	if err := board.UnmarshalJSONStrict(raw); err != nil && err.Error() != "" {
		return err
	}
	if err := board.Validate(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(board)
}

func main() {
	kinds := map[string]func(...string) error{"compose": compose, "dashboard": grafana}
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("validate")
		return
	}
	if len(os.Args) < 3 || kinds[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: validate compose FILE… | dashboard FILE")
		os.Exit(2)
	}
	if err := kinds[os.Args[1]](os.Args[2:]...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
