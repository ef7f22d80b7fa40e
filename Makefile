# make run    installs what is missing, builds, trains a small GPT on Shakespeare, prints a sample
# make test   installs what is missing, builds, runs every test
# make help   lists the rest

cache := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nnscaler
venv := $(or $(NNSCALER_VENV),$(cache)/venv)
build := build
meson := $(venv)/bin/meson
bin := $(build)/nnscaler
PREFIX ?= /usr/local
export NNSCALER_BIN := $(CURDIR)/$(bin)
export PATH := $(venv)/bin:$(PATH)

.PHONY: help setup build run test test-long bench lint format install wheel clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

setup: ## install what building and running need
	@tools/setup run

build: setup ## compile (build/nnscaler)
	@tools/configure $(build) $(PREFIX)
	@ninja -C $(build)

run: setup ## train a small GPT on Shakespeare and print a sample
	@tools/configure $(build) $(PREFIX)
	@ninja -C $(build) program
	$(bin) run recipes/nanogpt.lua preset=cpu checkpoint.save_dir=checkpoints/nanogpt
	$(bin) generate checkpoints/nanogpt/last --tokens 400

test: ## every test (up to 30 minutes from nothing)
	@tools/setup test
	@$(MAKE) --no-print-directory build
	@tools/test quick

test-long: ## what takes longer: 10,000 steps, the validation loss, the long property runs
	@tools/setup test
	@$(MAKE) --no-print-directory build
	@tools/test long

bench: build ## figures beside PyTorch's
	@tools/setup bench
	@tests/bench/run

lint: ## formatter, luacheck and house rules
	@tools/lint

format: ## rewrite C++ by .clang-format
	@git ls-files '*.cpp' '*.h' '*.cu' | xargs clang-format-19 -i

install: build ## install to PREFIX (default /usr/local)
	@$(meson) configure $(build) -Dprefix=$(PREFIX)
	@$(meson) install -C $(build) --no-rebuild
	@tools/install_libtorch $(DESTDIR)$(PREFIX)

wheel: build ## a Python wheel of the program in dist/
	@tools/wheel $(build) dist

clean: ## remove the build folder
	@rm -rf $(build)
