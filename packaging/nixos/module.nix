# NixOS module: `services.syngate`. See docs/nixos.md.
#
# - The configuration is at a path in /etc that never changes, so a change of it is a reload: the next generation beside the
#   running one, which serves on where the reload fails. New store paths of a backend are such a change, too.
# - A new syngate is a restart. With `sockets` the ports stay open meanwhile.
# - Everything in serviceConfig that confines the service is a default: a plain definition elsewhere replaces it.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.syngate;
  toml = pkgs.formats.toml { };

  file = "/etc/syngate/syngate.toml";
  haproxyFile = "/etc/syngate/haproxy.cfg";
  hasHaproxy = cfg.haproxy.config != null;

  settings = lib.recursiveUpdate (lib.optionalAttrs hasHaproxy {
    services.haproxy = {
      haproxy = haproxyFile;
      haproxy_binary = lib.getExe cfg.haproxy.package;
    };
  }) cfg.settings;
  hasSettings = settings != { };

  written =
    if cfg.configFile != null then
      cfg.configFile
    else if cfg.config != null then
      pkgs.writeText "syngate.toml" cfg.config
    else
      toml.generate "syngate.toml" settings;

  haproxySource = pkgs.writeText "haproxy.cfg" (toString cfg.haproxy.config);

  # HAProxy's file isn't in /etc yet when the check runs.
  checked = pkgs.runCommand "syngate.toml" { } ''
    sed 's|"${haproxyFile}"|"${haproxySource}"|' ${written} > as-built.toml
    ${lib.getExe cfg.package} check --config as-built.toml --control "$TMPDIR/control.sock"
    cp ${written} $out
  '';

  syngate = lib.getExe cfg.package;
  socketUnits = lib.mapAttrsToList (name: _: "syngate-${name}.socket") cfg.sockets;
in
{
  options.services.syngate = {
    enable = lib.mkEnableOption "syngate, a front TCP relay that never reloads";

    package = lib.mkOption {
      type = lib.types.package;
      default = pkgs.callPackage ./package.nix { };
      defaultText = lib.literalExpression "pkgs.callPackage ./package.nix { }";
      description = "The syngate to run.";
    };

    user = lib.mkOption {
      type = lib.types.nullOr lib.types.str;
      default = null;
      description = ''
        An existing account to run as; `null` is one that exists only while the service runs (`DynamicUser`). Backends run as
        the same user.
      '';
    };

    group = lib.mkOption {
      type = lib.types.nullOr lib.types.str;
      default = null;
      description = "An existing group to run as, with {option}`services.syngate.user`; `null` is that user's own.";
    };

    settings = lib.mkOption {
      type = toml.type;
      default = { };
      example = lib.literalExpression ''
        {
          services.web = {
            listen = "80";
            command = "''${lib.getExe pkgs.python3} -m http.server --directory /srv/www --bind {addr} {port}";
          };
        }
      '';
      description = "The configuration as a Nix expression; {manpage}`syngate-run(1)` names the keys.";
    };

    config = lib.mkOption {
      type = lib.types.nullOr lib.types.lines;
      default = null;
      description = "The configuration as TOML text, instead of {option}`services.syngate.settings`.";
    };

    configFile = lib.mkOption {
      type = lib.types.nullOr lib.types.path;
      default = null;
      description = "The configuration as a file, instead of {option}`services.syngate.settings`.";
    };

    haproxy = {
      config = lib.mkOption {
        type = lib.types.nullOr lib.types.lines;
        default = null;
        description = ''
          Contents of a stock HAProxy configuration to front. It becomes the service `haproxy`, whose other keys may stand in
          `services.syngate.settings.services.haproxy`. Its public ports are the gate's.
        '';
      };

      package = lib.mkPackageOption pkgs "haproxy" { };
    };

    sockets = lib.mkOption {
      type = lib.types.attrsOf (lib.types.listOf lib.types.str);
      default = { };
      example = {
        web = [ "80" ];
        tls = [ "443" ];
      };
      description = ''
        Ports that systemd opens and keeps over a restart of the gate, as `ListenStream=` takes them, by the name under which the
        configuration has them: `listen = "fd:web"`. An HAProxy's ports can't be among them: the gate opens those itself.
      '';
    };

    privilegedPorts = lib.mkOption {
      type = lib.types.bool;
      default = cfg.sockets == { };
      defaultText = lib.literalExpression "config.services.syngate.sockets == { }";
      description = "Whether the gate may open ports below 1024 itself (`CAP_NET_BIND_SERVICE`).";
    };

    checkConfig = lib.mkOption {
      type = lib.types.bool;
      default = !hasHaproxy && cfg.configFile == null;
      defaultText = lib.literalMD "`true`, unless there is an HAProxy configuration or a `configFile`";
      description = ''
        Whether `syngate check`, with the backends' own checks, has to pass when the system is built. Nothing that exists only on
        the running machine can be seen then: certificates, host names, programs without a full path. Each start and each reload
        checks in any case.
      '';
    };

    restartIfChanged = lib.mkOption {
      type = lib.types.bool;
      default = true;
      description = ''
        Whether a switch to a system with another syngate restarts the service, which ends the connections that its drain doesn't
        see end. Otherwise a running gate stays until it is restarted by hand.
      '';
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = lib.count lib.id [ hasSettings (cfg.config != null) (cfg.configFile != null) ] == 1;
        message = ''
          services.syngate: give the configuration in one place: settings (with haproxy.config), config or configFile.
        '';
      }
      {
        assertion = cfg.group == null || cfg.user != null;
        message = "services.syngate.group needs services.syngate.user.";
      }
    ];

    environment.systemPackages = [ cfg.package ];
    environment.etc = {
      "syngate/syngate.toml".source = if cfg.checkConfig then checked else written;
    }
    // lib.optionalAttrs hasHaproxy {
      "syngate/haproxy.cfg".source = haproxySource;
    };

    systemd.sockets = lib.mapAttrs' (
      name: addresses:
      lib.nameValuePair "syngate-${name}" {
        description = "Public ports of syngate: ${name}";
        wantedBy = [ "sockets.target" ];
        listenStreams = addresses;
        socketConfig = {
          FileDescriptorName = name;
          Service = "syngate.service";
          Backlog = lib.mkDefault 4096;
        };
      }
    ) cfg.sockets;

    systemd.services.syngate = {
      description = "syngate, a front TCP relay that never reloads";
      documentation = [
        "man:syngate(1)"
        "man:syngate-run(1)"
      ];
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      requires = socketUnits;
      after = [ "network-online.target" ] ++ socketUnits;
      startLimitIntervalSec = 0;

      reloadTriggers = [
        config.environment.etc."syngate/syngate.toml".source
      ]
      ++ lib.optional hasHaproxy haproxySource;
      inherit (cfg) restartIfChanged;
      # One restart, after everything else of the new system is in place, instead of a stop before and a start after.
      stopIfChanged = false;

      environment.SYNGATE_CONTROL = "/run/syngate/control.sock";

      serviceConfig = {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = "${syngate} run --config ${file}";
        ExecReload = "${syngate} reload";
        RuntimeDirectory = "syngate";
        RuntimeDirectoryMode = "0700";
        KillMode = "mixed";
      }
      // (
        if cfg.user == null then
          { DynamicUser = true; }
        else
          { User = cfg.user; } // lib.optionalAttrs (cfg.group != null) { Group = cfg.group; }
      )
      // lib.optionalAttrs (socketUnits != [ ]) { Sockets = socketUnits; }
      // lib.mapAttrs (_: lib.mkDefault) {
        TimeoutStartSec = 100;
        WatchdogSec = 30;
        Restart = "always";
        RestartSec = 1;
        TimeoutStopSec = 30;
        OOMPolicy = "continue";
        LimitNOFILE = "1024:524288";

        UMask = "0077";
        CapabilityBoundingSet = if cfg.privilegedPorts then "CAP_NET_BIND_SERVICE" else "";
        AmbientCapabilities = if cfg.privilegedPorts then "CAP_NET_BIND_SERVICE" else "";
        # A capability in a user namespace of its own is none for the machine's ports.
        PrivateUsers = !cfg.privilegedPorts;
        NoNewPrivileges = true;
        RestrictSUIDSGID = true;
        ProtectSystem = "strict";
        ProtectHome = true;
        PrivateMounts = true;
        PrivateTmp = true;
        PrivateDevices = true;
        DevicePolicy = "closed";
        PrivateIPC = true;
        RemoveIPC = true;
        ProtectProc = "invisible";
        ProtectClock = true;
        ProtectHostname = true;
        ProtectControlGroups = true;
        ProtectKernelLogs = true;
        ProtectKernelModules = true;
        ProtectKernelTunables = true;
        KeyringMode = "private";
        LockPersonality = true;
        # HAProxy's regular expressions are compiled to machine code.
        MemoryDenyWriteExecute = !hasHaproxy;
        RestrictNamespaces = true;
        RestrictRealtime = true;
        RestrictAddressFamilies = [
          "AF_INET"
          "AF_INET6"
          "AF_UNIX"
          "AF_NETLINK"
        ];
        SystemCallArchitectures = "native";
        SystemCallErrorNumber = "EPERM";
        SystemCallFilter = [
          "@system-service"
          "~@privileged @resources"
        ];
      };
    };
  };
}
