"""Pictures of results/depth_study.md."""
